//! The limit of open files. Each connection takes one; without a free one, the gateway can neither accept nor
//! connect.

/// The number of files for everything except clients' and upstreams' connections: listeners, operators, the
/// store, runtimes.
const OTHERS: usize = 256;

/// Returns how many client connections to allow: `wanted`, or fewer if upstreams and the store would lack
/// files. Raises the process's limit of open files to the highest possible.
pub(super) fn clients_most(wanted: usize, upstreams_most: usize) -> usize {
    let files = match rlimit::increase_nofile_limit(u64::MAX) {
        Ok(files) => usize::try_from(files).unwrap_or(usize::MAX),
        Err(error) => {
            tracing::warn!("can't raise the limit of open files: {error}");
            return wanted;
        }
    };
    let most = share(files, upstreams_most);
    if most < wanted {
        tracing::warn!(
            "allowing {most} client connections instead of {wanted}: the limit of open files is {files}, and upstreams \
             may use {upstreams_most}\nraise the limit (`ulimit -Hn`, LimitNOFILE) or lower server.max_connections"
        );
    }
    wanted.min(most)
}

/// Returns the number of files for clients. They get at least half, even if upstreams may need more.
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
