//! The program that measures accuracy under failure runs, and its document is up to date.

#[allow(dead_code)] // What `main` uses.
#[allow(clippy::print_stderr, reason = "people wait for it")]
#[path = "../bench/accuracy/program.rs"]
mod program;

use std::{fs, path::Path};

use clap::Parser;
use program::{
    Arguments,
    cases::CASES,
    judge::{Arrival, most_at_once, most_within, surely_within, without_grant},
    report::READING,
};

#[test]
fn nothing_is_found_where_all_is_well() {
    let arguments = Arguments::parse_from(["accuracy", "--only", "healthy", "--seconds", "1"]);
    for findings in arguments.run() {
        assert!(findings.faults().is_empty(), "{findings:?}");
        assert!(findings.admitted > 0, "{findings:?}");
    }
}

#[test]
fn the_document_says_what_the_program_would() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/accuracy.md");
    let document = fs::read_to_string(path).unwrap();
    let remedy = "stale: cargo bench --bench accuracy -- --output docs/accuracy.md";
    assert!(document.starts_with(READING), "{remedy}");
    for case in CASES {
        let (row, explanation) =
            (format!("| {} | ", case.name), format!("| {} | {} |", case.name, case.says));
        assert!(document.matches(&row).count() == 2 && document.contains(&explanation), "{row} {remedy}");
    }
}

#[test]
fn a_window_holds_what_is_less_than_its_length_old() {
    let grants = [(0, 2), (5, 1), (10, 3), (15, 1)];
    assert_eq!(most_within(&grants, 10), 4);
    assert_eq!(most_within(&grants, 11), 6);
}

#[test]
fn only_spans_that_lie_wholly_in_a_window_count() {
    assert_eq!(surely_within(vec![(0, 4), (1, 5), (2, 9)], 10), 3);
    assert_eq!(surely_within(vec![(0, 4), (1, 10), (2, 9)], 10), 2);
    assert_eq!(surely_within(vec![], 10), 0);
}

#[test]
fn requests_are_at_the_upstream_together_until_one_ends() {
    let arrival = |at_us, until_us| Arrival { id: 0, at_us, until_us };
    assert_eq!(most_at_once([arrival(0, 5), arrival(5, 9), arrival(6, 7)].into_iter()), 2);
}

#[test]
fn a_grant_is_for_one_span_that_it_lies_in() {
    assert_eq!(without_grant(vec![(0, 10), (2, 4)], &[(3, 1), (9, 1)]), 0);
    assert_eq!(without_grant(vec![(0, 10), (2, 4)], &[(3, 2)]), 0);
    assert_eq!(without_grant(vec![(0, 10), (2, 4)], &[(5, 2)]), 1);
    assert_eq!(without_grant(vec![(0, 1), (2, 4), (8, 9)], &[(5, 1)]), 3);
}
