//! `tollgate man`: manual pages, which packages contain.

use std::{path::PathBuf, process::ExitCode};

use clap::{Args, CommandFactory as _};

use super::{Cli, fail};

/// The folder for the pages.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  tollgate man /usr/local/share/man/man1

Environment variables: none.")]
pub(super) struct Man {
    /// Folder to write them to
    folder: PathBuf,
}

impl Man {
    /// Runs the command.
    pub(super) fn main(self) -> ExitCode {
        match clap_mangen::generate_to(Cli::command(), &self.folder) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                fail(&format!("can't write manual pages to `{}`: {error}", self.folder.display()));
                ExitCode::FAILURE
            }
        }
    }
}
