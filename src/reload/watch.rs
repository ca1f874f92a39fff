//! Watches the files that a configuration is made from, and has it reloaded when they change.
//!
//! What counts is what is in the files, not what happens to them: so a touch is no change, and neither editors that
//! write another file and rename it nor Kubernetes, which swaps a symbolic link for all files at once, need to be known.
//! The system tells of what happens in their folders, and of the links on the way; that is when it is looked. It is
//! looked now and then all the same, since folders are replaced as well, and not every file system tells.
//!
//! Who writes may not have finished. What was found must stay so for a while, and an empty file isn't taken for one.

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

/// How long files must stay as they are. It is also looked no more often.
const SETTLED_AFTER: Duration = Duration::from_millis(200);
/// How often it is looked though nothing was told.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Symbolic links on the way to a file.
const LINKS_MOST: usize = 16;

impl Reloader {
    /// Reloads when a file changes, until the program ends. Must be called in the runtime by which servers are watched.
    pub fn watch(self: Arc<Self>) {
        let runtime = Handle::current();
        // A thread of its own: a file system that hangs mustn't keep others waiting.
        let watching = thread::Builder::new().name("files".to_owned()).spawn(move || {
            let mut folders = Folders::new();
            loop {
                let sources = runtime.block_on(async { self.running.lock().await.sources.clone() });
                folders.follow(&sources);
                while !have_settled_anew(&sources) {
                    tracing::debug!("the files of the configuration are as they were");
                    folders.wait();
                }
                runtime.block_on(self.reload_if_changed());
            }
        });
        if let Err(error) = watching {
            tracing::warn!(
                "changes of the configuration aren't noticed: {error}\nsend SIGHUP after a change"
            );
        }
    }
}

/// Whether files have changed, and aren't being written any more.
fn have_settled_anew(sources: &Sources) -> bool {
    let mut seen = sources.now();
    while seen != *sources {
        sleep(SETTLED_AFTER);
        let now = sources.now();
        if now == seen {
            return !now.are_incomplete();
        }
        seen = now;
    }
    false
}

/// The folders in which the system is asked to tell of changes.
struct Folders {
    watcher: Option<RecommendedWatcher>,
    watched: BTreeSet<PathBuf>,
    told: Receiver<()>,
    /// What the watcher tells by; held here, too, so that waiting lasts where there is none.
    _tell: SyncSender<()>,
}

impl Folders {
    fn new() -> Self {
        let (tell, told) = sync_channel(1);
        let teller = tell.clone();
        let watcher = recommended_watcher(move |event: notify::Result<Event>| {
            // Looking at files is no change.
            if event.is_ok_and(|event| !event.kind.is_access()) {
                let _ = teller.try_send(());
            }
        });
        let watcher = watcher.map_err(|error| complain(&error)).ok();
        Self { watcher, watched: BTreeSet::new(), told, _tell: tell }
    }

    /// Watches the folders of these files, and no others. All are looked up anew, as a folder may be another one of the
    /// same name.
    fn follow(&mut self, sources: &Sources) {
        let Some(watcher) = &mut self.watcher else { return };
        for folder in &self.watched {
            // It may be gone.
            let _ = watcher.unwatch(folder);
        }
        self.watched = sources.paths().flat_map(|path| folders_of(path, LINKS_MOST)).collect();
        for folder in &self.watched {
            if let Err(error) = watcher.watch(folder, RecursiveMode::NonRecursive)
                && folder.exists()
            {
                complain(&error);
            }
        }
    }

    /// Waits until something may have changed.
    fn wait(&self) {
        if self.told.recv_timeout(LOOK_EVERY).is_ok() {
            sleep(SETTLED_AFTER);
        }
    }
}

fn complain(error: &notify::Error) {
    tracing::warn!(
        "changes of the configuration are noticed within {LOOK_EVERY:?}, not at once: {error}\n\
         if watches have run out, raise fs.inotify.max_user_instances or fs.inotify.max_user_watches"
    );
}

/// The folders in which a change may be one of this file: its own, and that of each symbolic link on the way to it.
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
            // A path that ends in a separator would be that of a folder.
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
