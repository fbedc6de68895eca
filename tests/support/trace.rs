//! The format of the recordings of Guava: one JSON object per line, described in
//! `tests/golden/guava/README.md`.

use serde::Deserialize;

use crate::float::float;

/// One recorded limiter and the calls made to it.
#[derive(Debug, Deserialize)]
pub(crate) struct Trace {
    pub(crate) id: String,
    pub(crate) class: Class,
    #[serde(flatten)]
    pub(crate) limiter: Limiter,
    /// The clock's reading when the limiter was created.
    pub(crate) start_us: i64,
    pub(crate) ops: Vec<Op>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Class {
    Normal,
    Extreme,
    /// A defect of Guava, recorded for the reader and not to be copied.
    Quirk,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(tag = "kind", content = "params", rename_all = "snake_case")]
pub(crate) enum Limiter {
    Bursty {
        #[serde(deserialize_with = "float")]
        permits_per_second: f64,
        #[serde(deserialize_with = "float")]
        max_burst_seconds: f64,
    },
    WarmingUp {
        #[serde(deserialize_with = "float")]
        permits_per_second: f64,
        warmup_us: i64,
        /// The exact warm-up, where it is not a whole number of microseconds: then Guava truncated
        /// it to `warmup_us`.
        warmup_ns: Option<i64>,
        #[serde(deserialize_with = "float")]
        cold_factor: f64,
    },
}

/// One call.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Op {
    /// The clock's reading at the call.
    pub(crate) at_us: i64,
    #[serde(flatten)]
    pub(crate) call: Call,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(crate) enum Call {
    Acquire {
        n: u32,
        wait_us: i64,
    },
    TryAcquire {
        n: u32,
        timeout_us: Option<i64>,
        timeout_ns: Option<i64>,
        ok: bool,
        wait_us: i64,
    },
    SetRate {
        #[serde(deserialize_with = "float")]
        rate: f64,
    },
    GetRate {
        #[serde(deserialize_with = "float")]
        rate: f64,
    },
    /// The clock moved; every other operation reports the resulting time.
    Advance {},
}
