//! Tests against the recorded behaviour of other rate limiters.

#[path = "../support/allowance.rs"]
mod allowance;
#[path = "../support/float.rs"]
mod float;
#[path = "../support/guava.rs"]
mod guava;
#[path = "../../examples/replay/go.rs"]
mod replay_go;
#[path = "../../examples/replay/guava.rs"]
mod replay_guava;
#[path = "../../examples/replay/nginx.rs"]
mod replay_nginx;
#[path = "../../examples/replay/report.rs"]
mod report;
#[path = "../support/scratch.rs"]
mod scratch;
#[path = "../support/trace.rs"]
mod trace;

mod recorded_go;
mod recorded_guava;
mod recorded_nginx;
mod recorded_sentinel;
