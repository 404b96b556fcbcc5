/* The table of trials and the address: each follows the other, so that a view is a link. */
(() => {
  const clientside = (window.dash_clientside = window.dash_clientside || {});
  const unchanged = () => clientside.no_update;
  const equal = (a, b) => JSON.stringify(a) === JSON.stringify(b);
  const parts = text => (text ? text.split(/[\s,]+/).filter(Boolean) : []);
  const firstOf = columns => ({sort: ['-trial'], where: [], filter: [], columns});

  function grid() {
    try {
      const api = window.dash_ag_grid.getApi('trials');
      return api && !api.isDestroyed() ? api : null;
    } catch {
      return null;  // It is not drawn yet.
    }
  }

  function set(query, name, values) {
    query.delete(name);
    values.forEach(each => query.append(name, each));
  }

  function changed(query, search) {
    const before = new URLSearchParams(search || '');
    before.sort();
    query.sort();
    const text = query.toString();
    if (before.toString() === text) return unchanged();
    return text ? `?${text.replaceAll('%2C', ',')}` : '';
  }

  const sorted = model => model.map(each => (each.sort === 'desc' ? '-' : '') + each.colId);

  function sortOf(api) {
    const there = api.getColumnState().filter(each => each.sort);
    return sorted(there.sort((a, b) => a.sortIndex - b.sortIndex));
  }

  /* The settings by name as address and view last had them: only changes by people are written.
     A change that follows from one address must not get into the next one. */
  const known = {};

  function write(now, first, search) {
    const query = new URLSearchParams(search || '');
    for (const [name, values] of Object.entries(now)) {
      if (equal(values, known[name])) continue;
      known[name] = values;
      set(query, name, equal(values, first[name]) ? [] : values);
    }
    return changed(query, search);
  }

  /* Returns the values of settings that the address has, or those of a new browser. */
  function read(search, first) {
    const query = new URLSearchParams(search || '');
    const wanted = ([name, values]) => [name, query.has(name) ? query.getAll(name) : values];
    const found = Object.fromEntries(Object.entries(first).map(wanted));
    return Object.assign(known, found) && found;
  }

  clientside.trials = {
    /* Returns the query for what the table shows now. */
    write(request, text, columns, first, search) {
      const api = grid();
      if (!api || !request) return unchanged();  // It has no columns yet.
      const model = api.getFilterModel();
      const where = Object.keys(model).length ? [JSON.stringify(model)] : [];
      const now = {sort: sortOf(api), where, filter: text ? [text] : [], columns};
      return write(now, firstOf(first), search);
    },

    /* Selects the trials whose boxes are checked, and no longer those whose boxes are not. */
    select(changes, search) {
      if (!changes || !changes.length) return unchanged();
      const query = new URLSearchParams(search || '');
      const chosen = new Set(parts(query.get('trials')));
      changes.forEach(each => {
        const number = String(each.data.trial);
        if (each.value) chosen.add(number);
        else if (!chosen.delete(number)) chosen.delete('best');
      });
      set(query, 'trials', chosen.size ? [[...chosen].join(',')] : []);
      return changed(query, search);
    },

    /* Shows what the address says, and reads the rows again. */
    show(search, version, shown, text, first) {
      const api = grid();
      if (!api) return unchanged();
      const {sort, where, filter, columns} = read(search, firstOf(first));
      if (!equal(sort, sortOf(api))) {
        const state = sort.map((each, sortIndex) => ({
          colId: each.replace(/^-/, ''), sort: each.startsWith('-') ? 'desc' : 'asc', sortIndex,
        }));
        api.applyColumnState({state, defaultState: {sort: null}});
      }
      const model = JSON.parse(where[0] || '{}');
      if (!equal(model, api.getFilterModel())) api.setFilterModel(model);
      if ((filter[0] || '') !== (text || '')) {
        clientside.set_props('filter', {value: filter[0] || ''});
      }
      if (!equal(columns, shown)) clientside.set_props('columns', {value: columns});
      api.getColumns().forEach(each => {
        const key = each.getColId(), isShown = key === 'chosen' || columns.includes(key);
        if (each.isVisible() !== isShown) api.setColumnsVisible([key], isShown);
      });
      api.refreshInfiniteCache();
      return unchanged();
    },
  };

  const named = (ids, values) => Object.fromEntries(
    ids.map(({name}, place) => [name, values[place] ? [values[place]] : []]));

  clientside.choices = {
    /* Returns the query for the choices of the view; those of a new browser are not in it. */
    write(values, ids, first, search) {
      return write(named(ids, values), named(ids, first), search);
    },

    /* Shows the choices that the address has. */
    show(search, values, ids, first) {
      const found = read(search, named(ids, first));
      ids.forEach((id, place) => {
        const [value = null] = found[id.name];
        if (value !== (values[place] ?? null)) clientside.set_props(id, {value});
      });
    },
  };

  const components = (window.dashAgGridComponentFunctions = window.dashAgGridComponentFunctions || {});

  components.TrialLink = ({value, base}) => value === undefined || value === null ? null
    : window.React.createElement('a', {href: base + value, className: 'trial'}, value);

  /* Links to trials open without a reload, and keep the settings of the address. */
  const linkOf = event => event.target.closest && event.target.closest('a.trial');
  const settle = event => {
    const link = linkOf(event);
    if (link) link.search = window.location.search;
  };
  document.addEventListener('pointerdown', settle, true);
  document.addEventListener('focusin', settle, true);
  document.addEventListener('click', event => {
    const link = linkOf(event);
    if (!link || event.metaKey || event.shiftKey || event.altKey || event.ctrlKey) return;
    event.preventDefault();
    settle(event);
    window.history.pushState({}, '', link.href);
    window.dispatchEvent(new CustomEvent('_dashprivate_pushstate'));
  });
})();
