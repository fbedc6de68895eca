//! The recordings of Go's `golang.org/x/time/rate` in `tests/golden/go-rate`, replayed as
//! `examples/replay` does.

use std::path::Path;

use crate::report::Report;

#[test]
fn every_recording_is_met_up_to_a_cancel_out_of_order() -> Result<(), String> {
    let report = crate::replay_go::replay(Path::new("tests/golden/go-rate"))?;
    assert!(report.is_success(), "{:#?}", report.failures);
    assert_eq!((report.passed, report.apart), (258, 42));
    Ok(())
}

/// Replays traces with a limit of 10 a second and a burst of 5.
fn replay(name: &str, ops: &[&str]) -> Result<Report, Box<dyn std::error::Error>> {
    let lines: Vec<String> =
        ops.iter().map(|ops| format!(r#"{{"name":"a","limit":10,"burst":5,"ops":[{ops}]}}"#)).collect();
    crate::scratch::with_file(name, &lines.join("\n"), crate::replay_go::replay)
}

#[test]
fn a_recording_that_differs_is_reported_with_its_position() -> Result<(), Box<dyn std::error::Error>> {
    let report = replay(
        "go-differs",
        &[
            r#"{"op":"allow","at_ns":0,"n":5,"ok":true},{"op":"allow","at_ns":0,"n":1,"ok":true}"#,
            r#"{"op":"allow","at_ns":0,"n":5,"ok":true},{"op":"reserve","at_ns":7,"n":1,"ok":true,"id":0,"delay_ns":5}"#,
            r#"{"op":"allow","at_ns":0,"n":5,"ok":true},{"op":"tokens","at_ns":7,"tokens":1}"#,
            r#"{"op":"allow","at_ns":7,"n":5,"ok":true},{"op":"tokens","at_ns":6,"tokens":1}"#,
        ],
    )?;
    assert!(!report.is_success());
    let [verdict, delay, tokens, time] = report.failures.as_slice() else { panic!("{:?}", report.failures) };
    assert!(verdict.contains("a.jsonl:1: a: operation 1, Op"), "{verdict}");
    assert!(verdict.contains("expected granted, got refused"), "{verdict}");
    assert!(delay.contains("expected a delay of 5 ns within 100 ns, got 99999993"), "{delay}");
    assert!(tokens.contains("expected 1 tokens within 0.0000020000000000000003, got 0.00000007"), "{tokens}");
    assert!(time.contains("time runs backwards"), "{time}");
    Ok(())
}

#[test]
fn cancels_are_compared_where_both_give_everything_back() -> Result<(), Box<dyn std::error::Error>> {
    let reserved = r#"{"op":"reserve","at_ns":0,"n":5,"ok":true,"id":0,"delay_ns":0},
        {"op":"reserve","at_ns":0,"n":2,"ok":true,"id":1,"delay_ns":200000000},
        {"op":"reserve","at_ns":0,"n":3,"ok":true,"id":2,"delay_ns":500000000},"#
        .replace('\n', "");
    let cancels = [
        // The newest first, and then the number that Go has left.
        r#"{"op":"cancel","at_ns":0,"id":2},{"op":"cancel","at_ns":0,"id":1},{"op":"tokens","at_ns":0,"tokens":0}"#,
        // Too late.
        r#"{"op":"cancel","at_ns":500000001,"id":2},{"op":"tokens","at_ns":500000001,"tokens":0}"#,
        // Out of order: the rest is not checked.
        r#"{"op":"cancel","at_ns":0,"id":1},{"op":"tokens","at_ns":0,"tokens":77}"#,
        // With a different burst.
        r#"{"op":"set_burst","at_ns":0,"burst":9},{"op":"cancel","at_ns":0,"id":2},{"op":"tokens","at_ns":0,"tokens":77}"#,
    ];
    let traces = cancels.map(|cancel| format!("{reserved}{cancel}"));
    let report = replay("go-cancels", &traces.each_ref().map(String::as_str))?;
    assert_eq!(report.failures, [] as [&str; 0]);
    assert_eq!((report.passed, report.apart), (2, 2));
    Ok(())
}
