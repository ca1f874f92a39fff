//! Refusals that are given without asking the store.
