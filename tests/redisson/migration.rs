//! docs/migration.md, executed: the same requests to what its readers have in Java and to what the page makes of it. What
//! differs must stand on the page, and all that stands under "What changes" must show.

mod rate_limiter;
mod spring;

use std::fmt::Debug;

/// A section of the page.
struct Guide {
    section: &'static str,
    told: Vec<&'static str>,
}

impl Guide {
    fn of(heading: &str) -> Self {
        let (_, rest) = include_str!("../../docs/migration.md").split_once(heading).unwrap();
        Self { section: rest.split("\n## ").next().unwrap(), told: Vec::new() }
    }

    /// Returns its only block in a language.
    fn block(&self, language: &str) -> &'static str {
        let fence = format!("```{language}\n");
        let mut blocks = self.section.split(&*fence).skip(1);
        let block = blocks.next().unwrap().split("```").next().unwrap();
        assert!(blocks.next().is_none(), "which block of {language}?");
        block
    }

    /// Fails unless all sides did the same.
    fn same<T: Copy + Debug + PartialEq, const N: usize>(&self, what: &str, found: [T; N]) {
        let is_same = found.iter().all(|side| *side == found[0]);
        assert!(is_same, "{what}: docs/migration.md doesn't say that this differs: {found:?}");
    }

    /// Fails unless the page says this, and all sides, Java first, did what it says.
    fn differs<T: Copy + Debug + PartialEq, const N: usize>(
        &mut self,
        sentence: &'static str,
        found: [T; N],
        expected: [T; N],
    ) {
        assert!(compact(self.section).contains(sentence), "docs/migration.md doesn't say: {sentence}");
        assert_eq!(found, expected, "docs/migration.md says: {sentence}");
        self.told.push(sentence);
    }

    /// Fails if something stands under "What changes" that no step has shown.
    fn assert_complete(self) {
        let (_, changes) = self.section.split_once("What changes:").unwrap();
        for change in changes.split("\n- ").skip(1).map(compact) {
            assert!(self.told.iter().any(|told| change.contains(told)), "nothing has shown: {change}");
        }
    }
}

/// Returns the text with one space for all between two words.
fn compact(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the text with something instead of a part of it, which it has once.
fn with(text: &str, part: &str, instead: &str) -> String {
    assert_eq!(text.matches(part).count(), 1, "{part}: {text}");
    text.replace(part, instead)
}
