//! Open files: each connection takes one, and who has none left can neither accept nor ask.

/// For all but the connections of clients and to upstreams: listeners, operators, the store, runtimes.
const OTHERS: usize = 256;

/// Connections of clients, as many as are wanted unless the files wouldn't suffice for those to upstreams and to
/// the store, too. The limit of files becomes the highest that this process may set.
pub(super) fn clients_most(wanted: usize, upstreams_most: usize) -> usize {
    let files = match rlimit::increase_nofile_limit(u64::MAX) {
        Ok(files) => usize::try_from(files).unwrap_or(usize::MAX),
        Err(error) => {
            tracing::warn!("the limit of open files can't be raised: {error}");
            return wanted;
        }
    };
    let most = share(files, upstreams_most);
    if most < wanted {
        tracing::warn!(
            "at most {most} connections of clients, not {wanted}: {files} files may be open, and {upstreams_most} \
             are for upstreams\nraise the limit (`ulimit -Hn`, LimitNOFILE) or lower server.max_connections"
        );
    }
    wanted.min(most)
}

/// What is left for clients; half of all if the others' bounds leave less.
fn share(files: usize, upstreams_most: usize) -> usize {
    files.saturating_sub(OTHERS.saturating_add(upstreams_most)).max(files / 2).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_leave_files_for_upstreams() {
        assert_eq!(share(20_000, 1024), 18_720);
        assert_eq!(share(1024, 1024), 512);
        assert_eq!(share(usize::MAX, usize::MAX), usize::MAX / 2);
    }
}
