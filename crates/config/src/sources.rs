//! The files that a configuration is made from: gateway.toml and the files that it names.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

/// The state of files when they were read. It holds their hashes, not their content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources(BTreeMap<PathBuf, FileState>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileState {
    Unreadable,
    Empty,
    Of([u8; 32]),
}

impl FileState {
    fn of(read: &io::Result<Vec<u8>>) -> Self {
        match read {
            Ok(bytes) if bytes.is_empty() => Self::Empty,
            Ok(bytes) => Self::Of(Sha256::digest(bytes).into()),
            Err(_) => Self::Unreadable,
        }
    }

    fn of_folder(listed: &io::Result<Vec<PathBuf>>) -> Self {
        match listed {
            Ok(files) => {
                let names = files.iter().flat_map(|file| [file.as_os_str().as_encoded_bytes(), b"\0"]);
                Self::Of(Sha256::digest(names.collect::<Vec<_>>().concat()).into())
            }
            Err(_) => Self::Unreadable,
        }
    }

    fn now(path: &Path) -> Self {
        if path.is_dir() { Self::of_folder(&files(path)) } else { Self::of(&fs::read(path)) }
    }
}

/// The most files and folders in a folder of rules.
const ENTRIES_MOST: usize = 10_000;

/// Returns the files of a folder, and of folders within, in the order of their names. Links to folders aren't followed.
fn files(root: &Path) -> io::Result<Vec<PathBuf>> {
    let (mut found, mut folders, mut entries) = (Vec::new(), vec![root.to_owned()], 0);
    while let Some(folder) = folders.pop() {
        // Messages name the first folder themselves.
        let named = |error: io::Error| match folder == *root {
            true => error,
            false => io::Error::new(error.kind(), format!("`{}`: {error}", folder.display())),
        };
        for entry in fs::read_dir(&folder).map_err(named)? {
            let entry = entry?;
            entries += 1;
            if entries > ENTRIES_MOST {
                return Err(io::Error::other(format!("it has more than {ENTRIES_MOST} files and folders")));
            }
            match entry.file_type()? {
                _ if entry.file_name().as_encoded_bytes().starts_with(b".") => {}
                kind if kind.is_dir() => folders.push(entry.path()),
                _ => found.extend(Some(entry.path()).filter(|path| path.is_file())),
            }
        }
    }
    found.sort();
    Ok(found)
}

impl Sources {
    /// Reads a file and records its state, even if it can't be read.
    ///
    /// # Errors
    /// The file can't be read.
    pub fn read(&mut self, path: PathBuf) -> io::Result<Vec<u8>> {
        let read = fs::read(&path);
        // It may be a folder.
        let state = if read.is_ok() { FileState::of(&read) } else { FileState::now(&path) };
        self.0.insert(path, state);
        read
    }

    /// Lists the files of a folder and of folders within, and records them, even if it can't be listed. Names that begin with a dot
    /// are left out.
    ///
    /// # Errors
    /// The folder can't be listed.
    pub fn read_folder(&mut self, path: &Path) -> io::Result<Vec<PathBuf>> {
        let listed = files(path);
        // It may be a file.
        let state = if listed.is_ok() { FileState::of_folder(&listed) } else { FileState::now(path) };
        self.0.insert(path.to_owned(), state);
        listed
    }

    /// Returns the current state of the same files.
    #[must_use]
    pub fn now(&self) -> Self {
        Self(self.0.keys().map(|path| (path.clone(), FileState::now(path))).collect())
    }

    /// Returns the files that have become empty since `before`. Programs often truncate a file before they write it.
    pub fn emptied(&self, before: &Self) -> Vec<&Path> {
        let mut changed = self.changed(before);
        changed.retain(|path| self.0.get(*path) == Some(&FileState::Empty));
        changed
    }

    /// Returns the files that differ from `before`.
    pub fn changed(&self, before: &Self) -> Vec<&Path> {
        let differs = |(path, state): &(&PathBuf, &FileState)| before.0.get(*path) != Some(*state);
        self.0.iter().filter(differs).map(|(path, _)| path.as_path()).collect()
    }

    /// Returns the paths of the files.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.0.keys().map(PathBuf::as_path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_file_or_no_folder_is_no_change() {
        let folder = tempfile::tempdir().unwrap();
        let (inner, file) = (folder.path().join("inner"), folder.path().join("file"));
        fs::create_dir(&inner).unwrap();
        fs::write(&file, "x").unwrap();
        let mut sources = Sources::default();
        sources.read(inner).unwrap_err();
        sources.read_folder(&file).unwrap_err();
        assert_eq!(sources.now(), sources);
    }
}
