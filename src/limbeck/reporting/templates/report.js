// The page is complete without this script, which adds search, counts, arrow keys and saving.
'use strict';
const rows = [...document.querySelectorAll('.row')];
const filters = [...document.querySelectorAll('.filters a')];
const shown = document.querySelector('.shown');
const search = document.querySelector('.search');
const field = search.querySelector('input');

function count() {
  const set = location.hash.startsWith('#set-') ? location.hash.slice(1) : '';
  const wanted = field.value.trim().toLowerCase();
  let number = 0;
  for (const row of rows) {
    const found = !wanted || row.textContent.toLowerCase().includes(wanted);
    row.classList.toggle('no-match', !found);
    if (found && (!set || row.classList.contains(set))) number += 1;
  }
  for (const link of filters) {
    const on = link.hash === '#' + set || (!set && link.hash === '#rows');
    if (on) link.setAttribute('aria-current', 'true');
    else link.removeAttribute('aria-current');
  }
  const found = shown.dataset.found.replace('{num}', number.toLocaleString('en')).replace('{text}', field.value.trim());
  shown.textContent = wanted ? found : '';
}

// The left and right arrow keys move the focus from mark to mark.
document.addEventListener('keydown', (event) => {
  const mark = document.activeElement.closest('.mark');
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!mark || !step) return;
  const marks = [...mark.closest('.essay').querySelectorAll('.mark')];
  const next = marks[marks.indexOf(mark) + step];
  if (next) next.focus();
  event.preventDefault();
});

const save = document.querySelector('.save');
save.addEventListener('click', () => {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([document.getElementById('data').textContent], { type: 'application/json' }));
  link.download = document.title.split(':')[0] + '.json';
  link.click();
  URL.revokeObjectURL(link.href);
});

search.hidden = save.hidden = false;
field.addEventListener('input', count);
addEventListener('hashchange', count);
count();
