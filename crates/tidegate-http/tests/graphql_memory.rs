//! The memory that reading a GraphQL body takes.

use std::alloc::System;

use http::{HeaderMap, StatusCode};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tidegate_http::read::Reader;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Regression: a body was read into a tree, which takes sixteen times as much memory as `[0,0,0]`.
#[test]
fn a_body_takes_less_memory_than_its_length() {
    let numbers = format!("[{}0]", "0,".repeat(100_000));
    let objects = format!("[{}{{}}]", "{},".repeat(100_000));
    for many in [numbers, objects] {
        for body in [
            format!(r#"{{"errors":{many},"data":{many},"extensions":{many}}}"#),
            format!(r#"{{"data":{{"rateLimit":{many}}},"extensions":{{"cost":{many}}}}}"#),
            format!(r#"{{"data":{{"rateLimit":{{"limit":{many},"resetAt":{many}}}}}}}"#),
            format!(r#"{{"extensions":{{"cost":{{"throttleStatus":{many}}}}}}}"#),
            format!(r#"{{"errors":[{{"extensions":{many}}}]}}"#),
            many.clone(),
        ] {
            let region = Region::new(ALLOCATOR);
            let response = Reader::auto().read_with_body(StatusCode::OK, &HeaderMap::new(), body.as_bytes());
            let taken = region.change().bytes_allocated;
            assert!(taken < body.len(), "{taken} bytes of {}: {}", body.len(), &body[..40]);
            assert!(!response.refused && response.limits.is_empty());
        }
    }
}
