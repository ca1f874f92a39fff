//! The sliding window, exactly: at most L permits in any window of length W, wherever it starts.
