//! The recordings of NGINX's `limit_req` in `tests/golden/nginx`, replayed as `examples/replay`
//! does.

use std::path::Path;

#[test]
fn every_recording_is_met() -> Result<(), String> {
    let report = crate::replay_nginx::replay(Path::new("tests/golden/nginx"))?;
    assert!(report.is_success(), "{:#?}", report.failures);
    assert_eq!((report.passed, report.apart), (83, 0));
    Ok(())
}

#[test]
fn a_recording_that_differs_is_reported_with_its_position() -> Result<(), Box<dyn std::error::Error>> {
    let run = |events: &str| {
        let zone = r#"{"milli_rps":10000,"burst":1,"delay":0}"#;
        let first = r#"{"at_ms":0,"seen_ms":0,"verdict":"passed","held_ms":0}"#;
        format!(r#"{{"name":"a","pattern":"","zones":[{zone}],"events":[{first},{events}]}}"#)
    };
    let runs = [
        run(r#"{"at_ms":0,"verdict":"passed","held_ms":0}"#),
        run(r#"{"at_ms":0,"verdict":"delayed","held_ms":89}"#),
        run(r#"{"at_ms":0,"verdict":"delayed","held_ms":100,"excess_milli":900,"zone":0}"#),
        run(r#"{"at_ms":0,"verdict":"delayed","held_ms":100,"excess_milli":1000,"zone":1}"#),
    ];
    let report = crate::scratch::with_file("nginx-differs", &runs.join("\n"), crate::replay_nginx::replay)?;
    assert!(!report.is_success());
    let [verdict, held, excess, zone] = report.failures.as_slice() else { panic!("{:?}", report.failures) };
    assert!(verdict.contains("a.jsonl:1: a: operation 1, Event"), "{verdict}");
    assert!(verdict.contains("expected Passed, got Delayed"), "{verdict}");
    assert!(held.contains("expected held for 89 ms, got 100.000 ms"), "{held}");
    assert!(excess.contains("expected an excess of 900, got 1000.0"), "{excess}");
    assert!(zone.contains("expected a zone of this run, got 1"), "{zone}");
    Ok(())
}
