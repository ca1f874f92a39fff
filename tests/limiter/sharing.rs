//! Limits that count in this process, that only shadow, and that outlive the store.
