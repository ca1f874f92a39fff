-- The sliding window in cells: grants within a cell of W / m share an entry, at the time of the last.
--
-- Rust twin: crates/limiter/src/algorithm/sliding_cells.rs.
--
-- The bucket is that of the sliding window, with at most m + 1 entries alive. A permit counts until its cell leaves
-- the window: never too short, and too long by less than W / m.
--
-- The parameter is m, the number of cells in a window.
local function sliding_cells()
  local algorithm = sliding_window()
  local exactly = algorithm.quota

  function algorithm.quota(permits, window_us, cells, time)
    local quota = exactly(permits, window_us, nil, time)
    quota.cell_us = math.max(1, math.floor(window_us / cells))
    return quota
  end

  return algorithm
end
