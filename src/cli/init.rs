//! `tollgate init`: writes a configuration to start with.

use std::{
    fs::File,
    io::{ErrorKind, Write},
    path::PathBuf,
    process::ExitCode,
};

use clap::Args;

use super::{fail, say};

/// The configuration that is written.
const TEMPLATE: &str = include_str!("init.toml");

/// The file to write.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tollgate init && tollgate              write ./gateway.toml and run with it
  tollgate init /etc/tollgate/gateway.toml

Exit status: 0 written; 1 the file exists or can't be written; 2 wrong usage.
Environment variables: none.")]
pub(super) struct Init {
    /// File to write; an existing file is never overwritten
    #[arg(default_value = "gateway.toml")]
    file: PathBuf,
}

impl Init {
    /// Runs the command.
    pub(super) fn main(self) -> ExitCode {
        let name = self.file.display();
        let written = File::create_new(&self.file).and_then(|mut file| file.write_all(TEMPLATE.as_bytes()));
        match written {
            Ok(()) => {
                say(format_args!(
                    "wrote {name}\ncheck it: tollgate check {name}\nrun: tollgate run --config {name}\n"
                ));
                return ExitCode::SUCCESS;
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                fail(&format!(
                    "`{name}` exists, and is not overwritten: name another file, or remove it first"
                ));
            }
            Err(error) => fail(&format!("can't write `{name}`: {error}")),
        }
        ExitCode::FAILURE
    }
}
