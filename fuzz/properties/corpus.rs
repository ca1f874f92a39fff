//! Tries each property on its corpus in fuzz/corpus and on mutations of it. The seed is fixed, so failures
//! can be reproduced. cargo-fuzz (fuzz/README.md) searches further.

use std::{fs, panic, path::Path};

use fastrand::Rng;

/// A property of bytes: a function that panics where it doesn't hold.
type Property = fn(&[u8]);

const SEED: u64 = 0x0070_116A_7E00;
/// The longest input, enough for a PROXY header.
const LONGEST: usize = 5_000;

fn corpus(name: &str) -> Vec<(String, Vec<u8>)> {
    let mut roots =
        Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().map(|folder| folder.join("fuzz/corpus"));
    let folder =
        roots.find(|folder| folder.is_dir()).expect("fuzz/corpus at the workspace's root").join(name);
    let files = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    files.iter().map(|file| (file.display().to_string(), fs::read(file).unwrap())).collect()
}

/// Asserts that a property holds for an input.
fn assert_holds(property: Property, input: &[u8], origin: &str) {
    let held = panic::catch_unwind(|| property(input)).is_ok();
    assert!(held, "the property doesn't hold for {origin}: b\"{}\"", input.escape_ascii());
}

/// Asserts that a property holds for the inputs of its corpus and for so many mutations of them.
pub(super) fn assert_holds_for_corpus_and(name: &str, property: Property, mutations: usize) {
    let corpus = corpus(name);
    assert!(!corpus.is_empty(), "fuzz/corpus/{name} is empty");
    for (file, input) in &corpus {
        assert_holds(property, input, file);
    }
    let mut rng = Rng::with_seed(SEED);
    for number in 0..mutations {
        let input = mutated(&corpus, &mut rng);
        assert_holds(property, &input, &format!("mutation {number} of seed {SEED:#x}"));
    }
}

/// Returns a part of the corpus with a few changes.
fn mutated(corpus: &[(String, Vec<u8>)], rng: &mut Rng) -> Vec<u8> {
    const WORDS: [&[u8]; 24] = [
        b"\r\n",
        b"\n",
        b"\0",
        b"\xff",
        b" ",
        b"%2e",
        b"%2F",
        b"%",
        b"/",
        b"//",
        b"..",
        b":",
        b"@",
        b"\"",
        b"{",
        b"}",
        b"[",
        b"]",
        b"=",
        b",",
        b"9223372036854775807",
        b"-1",
        b"18446744073709551616",
        "é".as_bytes(),
    ];
    let draw = |rng: &mut Rng| corpus[rng.usize(..corpus.len())].1.clone();
    let mut input = draw(rng);
    for _ in 0..rng.usize(1..6) {
        let at = rng.usize(..=input.len());
        let end = rng.usize(at..=input.len().min(at + 8));
        match rng.u8(..6) {
            0 => input.splice(at..end, []).for_each(drop),
            1 => input.splice(at..end, WORDS[rng.usize(..WORDS.len())].iter().copied()).for_each(drop),
            2 => input.insert(at, rng.u8(..)),
            3 if at < input.len() => input[at] ^= 1 << rng.u8(..8),
            4 => {
                let copied = input[at..end].to_vec();
                input.splice(at..at, copied.repeat(rng.usize(1..4))).for_each(drop);
            }
            _ => {
                let other = draw(rng);
                let from = rng.usize(..=other.len());
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
        }
    }
    input.truncate(LONGEST);
    input
}

/// Makes a test of each property, with the number of mutations to try.
macro_rules! tests {
    ($($name:ident: $mutations:literal)*) => {
        mod tests {
            $(
                #[test]
                fn $name() {
                    super::corpus::assert_holds_for_corpus_and(stringify!($name), super::$name, $mutations);
                }
            )*
        }
    };
}
pub(super) use tests;
