-- The sliding window in cells: grants within a cell of W / m are one entry, at the time of the last.
-- Rust twin: src/algorithm/sliding_cells.rs.
--
-- The bucket is the sliding window's, with at most m + 1 entries alive. A permit counts until the cell
-- it is in leaves the window, so never too short, and too long by less than W / m.
--
-- The parameter is m, the cells of a window.
local sliding_cells = setmetatable({}, { __index = sliding_window })

function sliding_cells.quota(permits, window_us, cells)
  return { capacity = permits, window_us = window_us, cell_us = max(1, floor(window_us / cells)) }
end
