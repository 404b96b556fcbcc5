/* The table of trials and the address: each follows the other, so that a view is a link. */
(() => {
  const clientside = (window.dash_clientside = window.dash_clientside || {});
  const unchanged = () => clientside.no_update;
  const equal = (a, b) => JSON.stringify(a) === JSON.stringify(b);
  const parts = text => (text ? text.split(/[\s,]+/).filter(Boolean) : []);
  const NEWEST = ['-trial'];

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

  clientside.trials = {
    /* Returns the query for what the table shows now. */
    write(request, text, columns, first, search) {
      const query = new URLSearchParams(search || '');
      if (request) {
        const order = sorted(request.sortModel);
        set(query, 'sort', equal(order, NEWEST) ? [] : order);
        const model = request.filterModel;
        set(query, 'where', Object.keys(model).length ? [JSON.stringify(model)] : []);
      }
      set(query, 'filter', text ? [text] : []);
      set(query, 'columns', equal(columns, first) ? [] : columns);
      return changed(query, search);
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
      const query = new URLSearchParams(search || '');
      const order = query.getAll('sort');
      const wanted = order.length ? order : NEWEST;
      if (!equal(wanted, sortOf(api))) {
        const state = wanted.map((each, sortIndex) => ({
          colId: each.replace(/^-/, ''), sort: each.startsWith('-') ? 'desc' : 'asc', sortIndex,
        }));
        api.applyColumnState({state, defaultState: {sort: null}});
      }
      const model = JSON.parse(query.get('where') || '{}');
      if (!equal(model, api.getFilterModel())) api.setFilterModel(model);
      if ((query.get('filter') || '') !== (text || '')) {
        clientside.set_props('filter', {value: query.get('filter') || ''});
      }
      const columns = query.has('columns') ? query.getAll('columns') : first;
      if (!equal(columns, shown)) clientside.set_props('columns', {value: columns});
      api.getColumns().forEach(each => {
        const key = each.getColId(), isShown = key === 'chosen' || columns.includes(key);
        if (each.isVisible() !== isShown) api.setColumnsVisible([key], isShown);
      });
      api.refreshInfiniteCache();
      return unchanged();
    },
  };

  clientside.choices = {
    /* Returns the query for the choices of the view; those of a new browser are not in it. */
    write(values, ids, first, search) {
      const query = new URLSearchParams(search || '');
      ids.forEach(({name}, place) => {
        const value = values[place];
        set(query, name, value === first[place] || !value ? [] : [value]);
      });
      return changed(query, search);
    },

    /* Shows the choices that the address has. */
    show(search, values, ids, first) {
      const query = new URLSearchParams(search || '');
      ids.forEach((id, place) => {
        const value = query.get(id.name) ?? first[place];
        if (value !== values[place]) clientside.set_props(id, {value});
      });
    },
  };

  const components = (window.dashAgGridComponentFunctions = window.dashAgGridComponentFunctions || {});

  /* The link of a trial, which opens without a reload. */
  components.TrialLink = ({value, base}) => {
    if (value === undefined || value === null) return null;
    const href = base + value + window.location.search;
    const open = event => {
      if (event.metaKey || event.shiftKey || event.altKey || event.ctrlKey) return;
      event.preventDefault();
      window.history.pushState({}, '', href);
      window.dispatchEvent(new CustomEvent('_dashprivate_pushstate'));
    };
    return window.React.createElement('a', {href, onClick: open}, value);
  };
})();
