'use strict';
// Sorts tables, shows one curve alone and opens closed sections for print; the page works without.
for (const table of document.querySelectorAll('table.sortable')) {
  const body = table.tBodies[0];
  const key = (row, i) => row.cells[i].dataset.key ?? row.cells[i].textContent;
  const missing = (text) => text === '–' || text.startsWith('not reached');
  table.querySelectorAll('thead th').forEach((head, i) => {
    const button = document.createElement('button');
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener('click', () => {
      const down = head.getAttribute('aria-sort') === 'ascending';
      for (const other of table.querySelectorAll('thead th')) other.removeAttribute('aria-sort');
      head.setAttribute('aria-sort', down ? 'descending' : 'ascending');
      const compare = (a, b) => {
        const [x, y] = [key(a, i), key(b, i)];
        if (missing(x) || missing(y)) return missing(x) - missing(y);
        const order = isNaN(x) || isNaN(y) ? x.localeCompare(y, 'en', {numeric: true}) : x - y;
        return down ? -order : order;
      };
      body.append(...[...body.rows].sort(compare));
    });
  });
}
for (const section of document.querySelectorAll('.looks')) {
  const curves = [...section.querySelectorAll('[id*="-curve-"]')];
  const group = (curve) => curve.id.match(/-curve-(\d+)/)[1];
  let chosen = null;
  const show = (wanted) => {
    for (const curve of curves) curve.classList.toggle('faded', wanted !== null && group(curve) !== wanted);
  };
  for (const item of document.querySelectorAll('.legend li')) {
    const curve = item.dataset.curve;
    item.tabIndex = 0;
    item.setAttribute('role', 'button');
    item.setAttribute('aria-pressed', 'false');
    const choose = () => {
      chosen = chosen === curve ? null : curve;
      for (const other of document.querySelectorAll('.legend li')) {
        other.setAttribute('aria-pressed', String(other.dataset.curve === chosen));
      }
      show(chosen);
    };
    item.addEventListener('click', choose);
    item.addEventListener('keydown', (event) => {
      if (event.key !== 'Enter' && event.key !== ' ') return;
      event.preventDefault();
      choose();
    });
    item.addEventListener('mouseenter', () => show(curve));
    item.addEventListener('mouseleave', () => show(chosen));
  }
}
// Shows a hint above a table or picture that is wider than the page, and fades its right edge.
for (const box of document.querySelectorAll('.scroll')) {
  const hint = box.parentElement.previousElementSibling;
  const update = () => {
    hint.hidden = box.scrollWidth <= box.clientWidth + 1;
    const end = box.scrollLeft + box.clientWidth >= box.scrollWidth - 1;
    box.parentElement.classList.toggle('more', !end);
  };
  box.addEventListener('scroll', update, {passive: true});
  new ResizeObserver(update).observe(box);
}
addEventListener('beforeprint', () => {
  for (const details of document.querySelectorAll('details')) details.open = true;
});
