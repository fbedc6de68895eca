//! The recordings of Guava's `RateLimiter` in `tests/golden/guava`, replayed as `examples/replay`
//! does.

use std::path::Path;

use crate::trace::{Limiter, Trace};

#[test]
fn every_recording_that_is_not_a_defect_is_met() -> Result<(), String> {
    let report = crate::replay_guava::replay(Path::new("tests/golden/guava"))?;
    assert!(report.is_success(), "{:#?}", report.failures);
    assert_eq!(report.passed, 311);
    assert_eq!(report.skipped, ["d-x16", "d-x17", "d-x18", "d-x19"]);
    assert_eq!(report.notes.len(), 4);
    Ok(())
}

/// Without the feature `float_roundtrip`, serde_json reads some floats inexactly, and the exact
/// comparison fails on rates of many digits.
#[test]
fn floats_are_read_as_they_are_written() -> Result<(), serde_json::Error> {
    let trace: Trace = serde_json::from_str(
        r#"{"id":"","class":"normal","kind":"bursty","params":{"permits_per_second":0.46779538726079317,
        "max_burst_seconds":1.0},"start_us":0,"ops":[]}"#,
    )?;
    let Limiter::Bursty { permits_per_second, .. } = trace.limiter else { panic!("{:?}", trace.limiter) };
    assert_eq!(permits_per_second, 0.46779538726079317);
    Ok(())
}

#[test]
fn a_recording_that_differs_is_reported_with_its_position() -> Result<(), Box<dyn std::error::Error>> {
    let trace = r#"{"id":"a","class":"normal","kind":"bursty","params":{"permits_per_second":5.0,"max_burst_seconds":1.0},
        "start_us":0,"ops":[{"op":"acquire","n":1,"at_us":0,"wait_us":0},{"op":"acquire","n":1,"at_us":0,"wait_us":7}]}"#;
    let content = trace.replace('\n', " ") + "\nnonsense\n";
    let report = crate::scratch::with_file("guava-differs", &content, crate::replay_guava::replay)?;
    assert!(!report.is_success());
    let [differs, unreadable] = report.failures.as_slice() else { panic!("{:?}", report.failures) };
    assert!(differs.contains("a.jsonl:1: a: ") && differs.contains("operation 1, Op"), "{differs}");
    assert!(differs.contains("expected 7, got 200000"), "{differs}");
    assert!(unreadable.contains("a.jsonl:2: "), "{unreadable}");
    Ok(())
}
