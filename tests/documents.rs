//! The documents' examples work: every TOML block passes `tollgate check`, and every block of commands is run in order, with
//! real gateways, Redis and curl.

use std::{
    collections::HashMap,
    env, fs,
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Child, Command, Stdio},
};

use crate::harness::{redis::free_port, wait_until};
use tempfile::TempDir;

/// The ports in the documents, which tests replace.
const PORTS: [&str; 5] = ["3000", "6379", "8080", "8081", "9901"];
const VARIABLES: [(&str, &str); 3] = [
    ("JWT_SECRET", "0123456789abcdef0123456789abcdef"),
    ("TOLLGATE_ADMIN_TOKEN", "0123456789abcdef0123456789abcdef"),
    ("TOLLGATE_METRICS_TOKEN", "fedcba9876543210fedcba9876543210"),
];

/// Beginnings of commands that aren't run, with reasons.
const SKIPPED: [(&str, &str); 3] = [
    ("cargo install", "Cargo has built what is tested"),
    ("cargo run", "the test has started the gateway, as a package does"),
    ("./scripts/test.sh", "it would run this test"),
];

/// A fenced block of a document: the word after its fence, and its text.
struct Block {
    kind: String,
    text: String,
}

fn file(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

fn blocks(document: &str) -> Vec<Block> {
    let text = file(document);
    let fenced = text.split("\n```").collect::<Vec<_>>();
    assert!(fenced.len() % 2 == 1, "{document}: a fence isn't closed");
    let block = |fenced: &[&str]| {
        let (kind, text) = fenced[0].split_once('\n').unwrap();
        Block { kind: kind.to_owned(), text: format!("{text}\n") }
    };
    fenced[1..].chunks(2).map(block).collect()
}

fn documents() -> Vec<String> {
    let docs = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs")).unwrap();
    let names = docs.map(|entry| format!("docs/{}", entry.unwrap().file_name().into_string().unwrap()));
    let mut documents: Vec<String> = names.filter(|name| name.ends_with(".md")).collect();
    documents.push("README.md".to_owned());
    documents
}

/// Returns a block as a complete file: one with only limits gets a route with all of them.
fn whole(block: &str) -> String {
    if block.contains("[[routes]]") || block.contains("[[descriptors]]") {
        return block.to_owned();
    }
    let limits = block.lines().filter_map(|line| line.strip_prefix("[limits.")?.split(']').next());
    let limits: Vec<&str> = limits.collect();
    format!("{block}\n[[routes]]\npath = \"/{{*rest}}\"\nrespond = {{ status = 204 }}\nlimits = {limits:?}\n")
}

#[test]
fn every_block_of_toml_is_good() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("ratelimit")).unwrap();
    fs::write(folder.path().join("ratelimit/shop.yaml"), "domain: shop\n").unwrap();
    fs::write(folder.path().join("keys.txt"), file("tests/known-keys.txt")).unwrap();
    let mut checked = 0;
    for document in documents() {
        for block in blocks(&document).iter().filter(|block| block.kind == "toml") {
            fs::write(folder.path().join("gateway.toml"), whole(&block.text)).unwrap();
            let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
            command.args(["check", "gateway.toml"]).current_dir(&folder).envs(VARIABLES);
            let output = command.output().unwrap();
            assert!(output.status.success(), "{document}: {}", String::from_utf8_lossy(&output.stderr));
            checked += 1;
        }
    }
    assert!(checked > 15, "{checked}");
}

/// Commands are in blocks of commands, which the tests below run.
#[test]
fn every_command_is_run() {
    let run = [
        "README.md",
        "docs/behind-load-balancers.md",
        "docs/configuration.md",
        // By tests/decisions/envoy.rs.
        "docs/llm-tokens.md",
        "docs/login-protection.md",
        "docs/migration.md",
        "docs/quick-start.md",
        "docs/simulate.md",
        // By tests/gateway/tiers.rs.
        "docs/tiers.md",
    ];
    for document in documents() {
        let blocks = blocks(&document);
        let mut commands = blocks.iter().filter(|block| block.kind == "sh").peekable();
        assert_eq!(commands.peek().is_some(), run.contains(&document.as_str()), "{document}");
        let commands: Vec<&str> = commands.flat_map(|block| block.text.lines()).collect();
        for line in file(&document).lines() {
            let is_command = ["tollgate ", "curl "].iter().any(|begin| line.trim_start().starts_with(begin));
            assert!(!is_command || commands.contains(&line), "{document}: `{line}` isn't run");
        }
    }
}

/// Returns the files of the repository that are documents.
fn all_documents() -> Vec<String> {
    let mut documents = documents();
    let others = ["ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "bench/README.md"];
    documents.extend(others.map(str::to_owned));
    documents.extend(["contrib/kubernetes/README.md", "crates/limiter/README.md"].map(str::to_owned));
    let adr = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/adr")).unwrap();
    documents
        .extend(adr.map(|entry| format!("docs/adr/{}", entry.unwrap().file_name().into_string().unwrap())));
    documents
}

/// Returns the targets of a document's links. Code has none.
fn links(document: &str) -> Vec<String> {
    let text = file(document);
    let prose = text.split("\n```").step_by(2).flat_map(|part| part.split('`').step_by(2));
    prose
        .flat_map(|part| part.split("](").skip(1))
        .filter_map(|rest| rest.split(')').next())
        .map(str::to_owned)
        .collect()
}

/// Returns the fragments of a document's headings, as GitHub makes them.
fn fragments(document: &str) -> Vec<String> {
    let kept = |letter: char| letter.is_alphanumeric() || "-_ ".contains(letter);
    let text = file(document);
    let titles =
        text.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    titles
        .map(|title| {
            title.to_lowercase().chars().filter(|letter| kept(*letter)).collect::<String>().replace(' ', "-")
        })
        .collect()
}

#[test]
fn every_link_leads_somewhere() {
    let mut faults = Vec::new();
    let mut checked = 0;
    for document in all_documents() {
        for link in links(&document).iter().filter(|link| !link.contains("://")) {
            checked += 1;
            let (path, fragment) = link.split_once('#').unwrap_or((link, ""));
            let folder = Path::new(&document).parent().unwrap();
            let target = if path.is_empty() {
                document.clone()
            } else {
                folder.join(path).to_str().unwrap().to_owned()
            };
            if !Path::new(env!("CARGO_MANIFEST_DIR")).join(&target).exists() {
                faults.push(format!("{document}: there is no {link}"));
            } else if !fragment.is_empty()
                && target.ends_with(".md")
                && !fragments(&target).contains(&fragment.to_owned())
            {
                faults.push(format!("{document}: no heading for {link}"));
            }
        }
    }
    assert_eq!(faults, [""; 0]);
    assert!(checked > 200, "{checked}");
}

/// A document that the index lacks isn't found.
#[test]
fn the_index_names_every_document() {
    let links = links("docs/README.md");
    for document in documents() {
        let name = document.strip_prefix("docs/").unwrap_or("README.md");
        assert!(name == "README.md" || links.contains(&name.to_owned()), "docs/README.md lacks {name}");
    }
}

/// A reader of a document, who follows it in a new folder.
struct Reader {
    folder: TempDir,
    path: String,
    ports: HashMap<&'static str, u16>,
    background: Vec<Child>,
}

impl Reader {
    fn new() -> Self {
        let programs = Path::new(env!("CARGO_BIN_EXE_tollgate")).parent().unwrap();
        Self {
            folder: tempfile::tempdir().unwrap(),
            path: format!("{}:{}", programs.display(), env::var("PATH").unwrap()),
            ports: PORTS.map(|port| (port, free_port())).into(),
            background: Vec::new(),
        }
    }

    /// Returns the text with the ports of this reader. Only whole numbers are ports.
    fn with_ports(&self, text: &str) -> String {
        let mut replaced = String::new();
        let mut rest = text;
        while let Some(begin) = rest.find(|letter: char| letter.is_ascii_digit()) {
            let digits = &rest[begin..];
            let end = digits.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(digits.len());
            replaced.push_str(&rest[..begin]);
            match self.ports.get(&digits[..end]) {
                Some(port) => replaced.push_str(&port.to_string()),
                None => replaced.push_str(&digits[..end]),
            }
            rest = &digits[end..];
        }
        replaced + rest
    }

    fn write(&self, name: &str, text: &str) {
        // A busy machine may take longer than the 50 ms after which gateways fall back.
        let url = "[store]\nurl = \"redis://127.0.0.1:6379\"\n";
        let patient = text.replace(url, &format!("{url}timeout = \"5s\"\n"));
        fs::write(self.folder.path().join(name), self.with_ports(&patient)).unwrap();
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", line]).current_dir(&self.folder).env("PATH", &self.path).stdin(Stdio::null());
        command
    }

    /// Starts the command of a line that ends with `&`, and waits until it reports that it is ready.
    fn start(&mut self, line: &str) {
        let log = self.folder.path().join(format!("log-{}", self.background.len()));
        let mut command = self.command(line);
        // A group of its own, so that the shell isn't killed alone.
        let output = fs::File::create(&log).unwrap();
        command.process_group(0).stdout(output.try_clone().unwrap()).stderr(output);
        let mut process = command.spawn().unwrap();
        let is_ready = || {
            let said = fs::read_to_string(&log).unwrap();
            assert_eq!(process.try_wait().unwrap(), None, "`{line}` ended: {said}");
            said.contains("try: ") || said.contains("Ready to accept connections")
        };
        wait_until(&format!("`{line}` is ready"), is_ready);
        self.background.push(process);
    }

    /// Runs a block of commands, and returns their output.
    fn run(&mut self, block: &Block) -> String {
        let mut printed = String::new();
        for line in self.with_ports(&block.text).lines() {
            let line = line.split("   #").next().unwrap().trim();
            if line.is_empty() || SKIPPED.iter().any(|(begin, _)| line.starts_with(begin)) {
                continue;
            }
            if let Some(line) = line.strip_suffix('&') {
                self.start(line);
                continue;
            }
            let output = self.command(line).output().unwrap();
            assert!(output.status.success(), "`{line}`: {output:?}");
            printed.push_str(&String::from_utf8(output.stdout).unwrap().replace('\r', ""));
        }
        printed
    }

    /// Runs all commands of a document.
    fn run_all(&mut self, document: &str) -> String {
        let blocks = blocks(document);
        blocks.iter().filter(|block| block.kind == "sh").map(|block| self.run(block)).collect()
    }

    /// Follows a document: a TOML block becomes gateway.toml, a block of commands is run, and a text block after it must be
    /// their output, where `…` stands for anything. Returns the number of command blocks.
    fn follow(&mut self, document: &str) -> usize {
        let mut printed = None;
        let mut ran = 0;
        for block in blocks(document) {
            match block.kind.as_str() {
                "toml" => self.write("gateway.toml", &block.text),
                "sh" => {
                    printed = Some(self.run(&block));
                    ran += 1;
                }
                "text" => {
                    let printed = printed.take().expect("text stands after commands");
                    let shown = self.with_ports(&block.text);
                    assert!(is_like(&printed, &shown), "{document} shows:\n{shown}\nin truth:\n{printed}");
                }
                _ => {}
            }
        }
        ran
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        for process in self.background.iter_mut().rev() {
            // It may have ended by itself.
            let _ = Command::new("kill").args(["-KILL", "--", &format!("-{}", process.id())]).status();
            let _ = process.wait();
        }
    }
}

/// Returns true if the expected text, with `…` for anything, is in the output.
fn is_like(printed: &str, shown: &str) -> bool {
    let mut rest = printed.trim_end();
    let mut parts = shown.trim_end().split('…');
    let Some(after) = rest.strip_prefix(parts.next().unwrap()) else { return false };
    rest = after;
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        let Some((_, after)) = rest.split_once(part) else { return false };
        rest = after;
    }
    rest.ends_with(last)
}

#[test]
fn what_is_shown_is_compared() {
    assert!(is_like("a\nb 17 c\n", "a\nb … c") && is_like("a b c d", "…b…") && is_like("a\n", "a"));
    assert!(!is_like("a\nb", "a") && !is_like("a b", "…c…") && !is_like("a b c", "a…b"));
}

#[test]
fn the_readme_does_what_it_says() {
    let mut reader = Reader::new();
    reader.write("gateway.toml", &file("gateway.toml"));
    // Its block of TOML is another reader's: these commands are those of the shipped file.
    reader.start("tollgate");
    let printed = reader.run_all("README.md");
    assert_eq!(printed.matches("HTTP/1.1 200 OK\n").count(), 5, "{printed}");
    assert_eq!(printed.matches("HTTP/1.1 429 Too Many Requests\n").count(), 1, "{printed}");
}

#[test]
fn the_quick_start_does_what_it_says() {
    assert!(Reader::new().follow("docs/quick-start.md") >= 6);
}

/// Its examples of other programs aren't run.
#[test]
fn the_migration_does_what_it_says() {
    assert!(Reader::new().follow("docs/migration.md") >= 1);
}

/// Each balancer's `X-Forwarded-For` names the client, with the file that the document has for it.
#[test]
fn behind_load_balancers_the_client_is_known() {
    assert!(Reader::new().follow("docs/behind-load-balancers.md") >= 4);
}

#[test]
fn the_page_about_logins_does_what_it_says() {
    assert!(Reader::new().follow("docs/login-protection.md") >= 5);
}

/// The commands for operators in the other documents, with an admin port and a log.
#[test]
fn operators_do_what_is_said() {
    let mut reader = Reader::new();
    let shipped = file("gateway.toml") + "[admin]\nlisten = \"127.0.0.1:9901\"\n";
    reader.write("gateway.toml", &shipped);
    reader.start("tollgate");
    let printed = reader.run_all("docs/configuration.md");
    assert!(printed.contains("{\"changes\":[") && printed.contains("used  0"), "{printed}");

    reader.write("new.toml", &shipped.replace("5/10s", "2/10s"));
    let line = "192.0.2.7 - - [21/Nov/2026:06:25:14 +0000] \"GET / HTTP/1.1\" 200 5 \"-\" \"curl/8.5.0\"\n";
    reader.write("access.log", &line.repeat(4));
    reader.write("access.log.2", line);
    reader.write("old", line);
    assert!(reader.command("gzip access.log.2 old").status().unwrap().success());
    let printed = reader.run_all("docs/simulate.md");
    assert!(printed.contains("4 admitted\n") && printed.contains("newly refused"), "{printed}");
}
