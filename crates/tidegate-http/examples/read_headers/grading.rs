//! Grades how the reader reads one recorded header block.
//!
//! A limit is compared by its unit, limit and remaining. Its reset may differ by a second. Its
//! window must be equal. The words in `lenient` name fields that may also be left unread.

use std::time::{Duration, Instant, SystemTime};

use http::StatusCode;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;
use tidegate_http::read::{Advice, DEFAULT_MAX_PAUSE, Reader, ResponseLimits, ServerLimit};
use tidegate_http::{Unit, When};

/// How a block was read.
pub(crate) struct Outcome {
    pub(crate) id: String,
    /// Empty if the block was read as expected.
    pub(crate) faults: Vec<String>,
    pub(crate) expected: String,
    pub(crate) got: String,
}

/// Reads and grades one line of a file.
pub(crate) fn grade(line: &str) -> Outcome {
    let block: Value = match serde_json::from_str(line) {
        Ok(block) => block,
        Err(error) => {
            let (id, expected, got) = (String::from("?"), String::from("a block"), line.to_owned());
            return Outcome { id, faults: vec![error.to_string()], expected, got };
        }
    };
    let status = block["status"].as_u64().and_then(|s| u16::try_from(s).ok()).unwrap_or(200);
    let status = StatusCode::from_u16(status).unwrap_or_default();
    let headers = headers(&block);
    // Without a `Date` and a clock, no block asks for a time from now.
    let now = block["local_clock"].as_f64().unwrap_or(0.0);
    let now = SystemTime::UNIX_EPOCH + Duration::try_from_secs_f64(now).unwrap_or_default();

    let start = Instant::now();
    let response = Reader::auto().read(status, &headers);
    let took = start.elapsed();

    let mut grader = Grader { block: &block, now, faults: Vec::new() };
    grader.limits(&response);
    grader.retry_after(&response);
    grader.pause(&response);
    if let Some(most) = block["max_seconds"].as_f64() {
        grader.check(took.as_secs_f64() <= most, || format!("took {took:?}"));
    }
    Outcome {
        id: block["id"].as_str().unwrap_or("?").to_owned(),
        faults: grader.faults,
        expected: block["expect"].to_string(),
        got: show(&response, now),
    }
}

/// Returns the headers of a block. A name that HTTP does not allow is left out, because no client
/// passes it on.
fn headers(block: &Value) -> HeaderMap {
    let escaped = block["bytes_escaped"] == true;
    let bytes = |text: &Value| {
        let text = text.as_str().unwrap_or_default();
        if escaped { unescape(text) } else { text.as_bytes().to_vec() }
    };
    let mut headers = HeaderMap::new();
    for pair in block["headers"].as_array().into_iter().flatten() {
        let name = HeaderName::from_bytes(&bytes(&pair[0]));
        let value = HeaderValue::from_bytes(&bytes(&pair[1]));
        if let (Ok(name), Ok(value)) = (name, value) {
            // A full map takes no more headers. No client passes on that many.
            let _ = headers.try_append(name, value);
        }
    }
    headers
}

/// Replaces `\xNN` with the byte.
fn unescape(text: &str) -> Vec<u8> {
    let mut parts = text.split("\\x");
    let mut out = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let byte = part.get(..2).and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match byte {
            Some(byte) => {
                out.push(byte);
                out.extend(&part.as_bytes()[2..]);
            }
            None => out.extend(format!("\\x{part}").as_bytes()),
        }
    }
    out
}

struct Grader<'a> {
    block: &'a Value,
    now: SystemTime,
    faults: Vec<String>,
}

impl Grader<'_> {
    fn check(&mut self, holds: bool, fault: impl FnOnce() -> String) {
        if !holds {
            self.faults.push(fault());
        }
    }

    fn expect(&self) -> &Value {
        &self.block["expect"]
    }

    fn is_lenient(&self, word: &str) -> bool {
        self.block["lenient"].as_array().into_iter().flatten().any(|w| w == word)
    }

    fn limits(&mut self, response: &ResponseLimits) {
        let no_limits = Vec::new();
        let expected = self.expect()["limits"].as_array().unwrap_or(&no_limits);
        let none_will_do = self.is_lenient("limits") || self.block["stale"] == true;
        if response.limits.is_empty() && none_will_do {
            return;
        }
        let mut left: Vec<&ServerLimit> = response.limits.iter().collect();
        let mut missing = Vec::new();
        let mut faults = Vec::new();
        for one in expected {
            let fits = |strict: bool| left.iter().position(|got| self.counts_match(one, got, strict));
            let Some(at) = fits(true).or_else(|| fits(false)) else {
                missing.push(one);
                continue;
            };
            // Of several limits with equal counts, takes the one whose times fit.
            let twin = left
                .iter()
                .position(|got| self.counts_match(one, got, true) && self.times_match(one, got).is_empty());
            let got = left.remove(twin.unwrap_or(at));
            faults.extend(self.times_match(one, got));
        }
        let secondary = self.is_lenient("extra-limits") || self.is_lenient("at-least-tightest");
        let all_missing = missing.len() == expected.len() && !expected.is_empty();
        if !missing.is_empty() && (!secondary || all_missing) {
            faults.push(format!("{} limits missing", missing.len()));
        }
        left.retain(|got| {
            let again = expected.iter().any(|one| self.counts_match(one, got, true));
            let window_only = got.limit.is_none() && got.remaining.is_none() && got.reset.is_none();
            !(again && self.is_lenient("duplicates") || window_only && self.is_lenient("window-only"))
        });
        if !left.is_empty() {
            faults.push(format!("{} limits too many", left.len()));
        }
        self.faults.extend(faults);
    }

    fn counts_match(&self, expected: &Value, got: &ServerLimit, strict: bool) -> bool {
        let unit = got.unit.map(|unit| match unit {
            Unit::Bytes => "bytes",
            Unit::Concurrency => "concurrency",
            other => other.as_str(),
        });
        let may_lack = |field: &str| !strict && self.is_lenient(field);
        let near = |a: f64, b: f64| (a - b).abs() <= 1e-9 * a.abs().max(1.0);
        let number = |field: &str, got: Option<f64>| match (expected[field].as_f64(), got) {
            (Some(a), Some(b)) => near(a, b),
            (None, None) => true,
            (Some(_), None) => may_lack(field),
            (None, Some(b)) => expected[format!("lenient_{field}")].as_f64().is_some_and(|a| near(a, b)),
        };
        (expected["unit"].as_str() == unit || (unit.is_none() && may_lack("unit")))
            && number("limit", got.limit)
            && number("remaining", got.remaining)
    }

    fn times_match(&self, expected: &Value, got: &ServerLimit) -> Vec<String> {
        let mut faults = Vec::new();
        let window = got.window.map(|w| w.as_secs_f64());
        let no_window = window.is_none() && self.is_lenient("window_seconds");
        if expected["window_seconds"].as_f64() != window && !no_window {
            faults.push(format!("window {window:?}"));
        }
        let lenient = self.is_lenient("reset_after_seconds") || self.is_lenient("reset");
        let fits = match (expected["reset_after_seconds"].as_f64(), expected["reset_at"].as_f64(), got.reset)
        {
            (Some(after), _, Some(reset)) => near_time(after, self.seconds(reset)),
            (None, Some(at), Some(When::At(time))) => near_time(at, unix(time)),
            (None, Some(at), Some(When::In(wait))) => near_time(at, unix(self.now + wait)),
            (None, None, Some(reset)) => {
                expected["lenient_reset"].as_f64().is_some_and(|a| near_time(a, self.seconds(reset)))
            }
            (after, at, None) => (after.is_none() && at.is_none()) || lenient,
        };
        // A date without a time to count from is compared literally.
        let literal = lenient && matches!(got.reset, Some(When::At(_)));
        if !fits && !literal {
            faults.push(format!("reset {:?}", got.reset));
        }
        faults
    }

    fn seconds(&self, when: When) -> f64 {
        when.wait(self.now).as_secs_f64()
    }

    fn retry_after(&mut self, response: &ResponseLimits) {
        let got = response.retry_after.map(|when| self.seconds(when));
        let expected = &self.expect()["retry_after_seconds"];
        let at = self.block["retry_at"].as_f64().or(self.expect()["retry_at"].as_f64());
        let fits = match (expected.as_f64(), at, response.retry_after, got) {
            (Some(expected), _, _, Some(got)) => near_time(expected, got),
            (None, Some(at), Some(When::At(time)), _) => near_time(at, unix(time)),
            (None, None, _, None) => true,
            // A time that the reader reports and the pause caps.
            (None, None, _, Some(_)) => self.is_lenient("cap") || self.is_lenient("retry_after_seconds"),
            (_, _, _, None) => self.is_lenient("retry_after_seconds") || self.is_lenient("ignore"),
            _ => false,
        };
        self.check(fits, || format!("retry after {got:?}"));
    }

    fn pause(&mut self, response: &ResponseLimits) {
        let pause = response.advice(self.now, DEFAULT_MAX_PAUSE);
        if let Some(expected) = self.expect()["pause"].as_bool() {
            let fits = (pause != Advice::Go) == expected;
            self.check(fits, || format!("pause {pause:?}"));
        }
        if let (Some(cap), Advice::Pause { wait, .. }) = (self.block["cap_advised_seconds"].as_f64(), pause) {
            self.check(wait.as_secs_f64() <= cap, || format!("pause {pause:?} beyond {cap}"));
        }
    }
}

/// Returns whether both are equal within a second, or within a hundredth if the expected time has a
/// fraction.
fn near_time(expected: f64, got: f64) -> bool {
    let tolerance = if expected.fract() == 0.0 { 1.0 } else { 0.01 };
    (expected - got).abs() <= tolerance
}

fn unix(time: SystemTime) -> f64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

fn show(response: &ResponseLimits, now: SystemTime) -> String {
    let limits: Vec<String> = response
        .limits
        .iter()
        .map(|l| {
            let (name, scope) = (l.name.as_deref().unwrap_or("-"), l.scope.as_deref().unwrap_or("-"));
            let unit = l.unit.map_or("-", Unit::as_str);
            format!(
                "{name} [{unit}, {scope}] {:?} of {:?}, reset {:?}, window {:?}",
                l.remaining, l.limit, l.reset, l.window
            )
        })
        .collect();
    format!(
        "{limits:?}, retry after {:?}, pause {:?}",
        response.retry_after,
        response.advice(now, DEFAULT_MAX_PAUSE)
    )
}
