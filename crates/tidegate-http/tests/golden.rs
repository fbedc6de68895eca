//! Recorded and constructed header blocks, each read as expected.

#[path = "../examples/read_headers/grading.rs"]
mod grading;

fn read_as_expected(lines: &str) {
    let outcomes: Vec<_> = lines.lines().map(grading::grade).collect();
    assert!(!outcomes.is_empty());
    for one in outcomes {
        assert!(
            one.faults.is_empty(),
            "{}: {:?}: expected {}, got {}",
            one.id,
            one.faults,
            one.expected,
            one.got
        );
    }
}

#[test]
fn recorded_blocks_are_read_as_expected() {
    read_as_expected(include_str!("golden/recorded.jsonl"));
}

#[test]
fn made_blocks_are_read_as_expected() {
    read_as_expected(include_str!("golden/made.jsonl"));
}
