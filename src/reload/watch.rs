//! Watches the files of a configuration, and reloads it when they change.
//!
//! A change is a change of content, not just of the time stamp. It doesn't matter how a file was replaced:
//! editors often write another file and rename it, and Kubernetes switches a symbolic link. The system
//! reports events in the folders of the files and of the links on the way to them; then the files are
//! compared. They are also compared from time to time, since folders can be replaced, and some file systems
//! report no events.
//!
//! A writer may not have finished. So a new content must stay the same for a while, and if a file has become
//! empty, all changes wait until it has content, or until somebody else reloads.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread::{self, sleep},
    time::Duration,
};

use notify::{Event, RecommendedWatcher, RecursiveMode, Watcher, recommended_watcher};
use tokio::runtime::Handle;

use crate::config::Sources;

use super::Reloader;

/// The time for which files must stay the same. Also the shortest time between two comparisons.
const SETTLED_AFTER: Duration = Duration::from_millis(200);
/// The time after which files are compared without an event.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// The most symbolic links to follow on the way to a file.
const LINKS_MOST: usize = 16;

impl Reloader {
    /// Starts to reload the configuration whenever a file changes, until the program ends. Must be called in
    /// the runtime of the health checks.
    pub fn watch(self: Arc<Self>) {
        let runtime = Handle::current();
        // This has a thread of its own, because a file system can block.
        let watching = thread::Builder::new().name("files".to_owned()).spawn(move || {
            let mut folders = Folders::new();
            let in_use = || runtime.block_on(async { self.running.lock().await.sources.clone() });
            loop {
                let sources = in_use();
                folders.follow(&sources);
                let mut reported = sources.clone();
                // Others reload, too, and may take an empty file as it is.
                while in_use() == sources {
                    if have_changed_completely(&sources, &mut reported) {
                        runtime.block_on(self.reload_if_changed());
                    } else {
                        tracing::debug!("the files of the configuration are unchanged");
                        folders.wait();
                    }
                }
            }
        });
        if let Err(error) = watching {
            tracing::warn!("can't watch the configuration: {error}\nsend SIGHUP after a change");
        }
    }
}

/// Waits while files are being written. Returns true if they have changed and are complete. Reports files that have become
/// empty, once for each state of the files.
fn have_changed_completely(sources: &Sources, reported: &mut Sources) -> bool {
    let mut seen = sources.now();
    while seen != *sources {
        sleep(SETTLED_AFTER);
        let now = sources.now();
        if now == seen {
            let emptied = now.emptied(sources);
            let is_complete = emptied.is_empty();
            if !is_complete && now != *reported {
                let names: Vec<String> = emptied.iter().map(|path| format!("`{}`", path.display())).collect();
                tracing::warn!(
                    "{} became empty, so changes of the configuration wait until it is written\n\
                     to use it as it is, send SIGHUP",
                    names.join(", ")
                );
                *reported = now;
            }
            return is_complete;
        }
        seen = now;
    }
    false
}

/// The folders that are watched for events.
struct Folders {
    watcher: Option<RecommendedWatcher>,
    watched: BTreeSet<PathBuf>,
    events: Receiver<()>,
    /// The sending end, kept so that waiting lasts for its whole time even without a watcher.
    _sender: SyncSender<()>,
}

impl Folders {
    fn new() -> Self {
        let (sender, events) = sync_channel(1);
        let event_sender = sender.clone();
        let watcher = recommended_watcher(move |event: notify::Result<Event>| {
            // Reading a file is an event, too, but no change.
            if event.is_ok_and(|event| !event.kind.is_access()) {
                let _ = event_sender.try_send(());
            }
        });
        let watcher = watcher.map_err(|error| complain(&error)).ok();
        Self { watcher, watched: BTreeSet::new(), events, _sender: sender }
    }

    /// Watches the folders of these files, and no others. Each is watched again, since another folder may
    /// have taken its name.
    fn follow(&mut self, sources: &Sources) {
        let Some(watcher) = &mut self.watcher else { return };
        for folder in &self.watched {
            // The folder may be gone.
            let _ = watcher.unwatch(folder);
        }
        self.watched = sources.paths().flat_map(|path| folders_of(path, LINKS_MOST)).collect();
        // A folder may get its first file.
        self.watched.extend(sources.paths().filter(|path| path.is_dir()).map(Path::to_owned));
        for folder in &self.watched {
            if let Err(error) = watcher.watch(folder, RecursiveMode::NonRecursive)
                && folder.exists()
            {
                complain(&error);
            }
        }
    }

    /// Waits until a file may have changed.
    fn wait(&self) {
        if self.events.recv_timeout(LOOK_EVERY).is_ok() {
            sleep(SETTLED_AFTER);
        }
    }
}

fn complain(error: &notify::Error) {
    tracing::warn!(
        "the configuration can't be watched for events, so changes are noticed within {LOOK_EVERY:?}: {error}\n\
         if watches have run out, raise fs.inotify.max_user_instances or fs.inotify.max_user_watches"
    );
}

/// Returns the folders where an event may concern this file: its own, and those of the symbolic links on the
/// way to it.
fn folders_of(path: &Path, links_most: usize) -> Vec<PathBuf> {
    let parent = |path: &Path| match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    let mut folders = vec![parent(path)];
    for link in path.ancestors() {
        if let (Ok(target), true) = (fs::read_link(link), links_most > 0) {
            let rest = path.strip_prefix(link).unwrap_or(Path::new(""));
            let target = parent(link).join(target);
            folders.push(parent(link));
            // Joining an empty path would append a separator, which would make it the path of a folder.
            let target = if rest.as_os_str().is_empty() { target } else { target.join(rest) };
            folders.extend(folders_of(&target, links_most - 1));
            break;
        }
    }
    folders
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_are_followed_to_the_file() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        for folder in ["conf", "conf/..2026", "elsewhere"] {
            fs::create_dir(at(folder)).unwrap();
        }
        fs::write(at("conf/..2026/gateway.toml"), "").unwrap();
        symlink("..2026", at("conf/..data")).unwrap();
        symlink("..data/gateway.toml", at("conf/gateway.toml")).unwrap();
        symlink("../conf", at("elsewhere/current")).unwrap();
        let folders = |path: &str| {
            let folders = folders_of(&at(path), LINKS_MOST).into_iter();
            folders.map(|folder| folder.canonicalize().unwrap()).collect::<BTreeSet<_>>()
        };
        let root = root.path().canonicalize().unwrap();
        let expected = |names: &[&str]| names.iter().map(|name| root.join(name)).collect::<BTreeSet<_>>();
        assert_eq!(folders("conf/gateway.toml"), expected(&["conf", "conf/..2026"]));
        let all = expected(&["conf", "conf/..2026", "elsewhere"]);
        assert_eq!(folders("elsewhere/current/gateway.toml"), all);
        assert_eq!(folders_of(Path::new("gateway.toml"), LINKS_MOST), [PathBuf::from(".")]);

        symlink("loop", at("conf/loop")).unwrap();
        assert_eq!(folders("conf/loop"), expected(&["conf"]));
    }
}
