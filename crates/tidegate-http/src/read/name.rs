//! The meaning of a header, read from the words of its name.
//!
//! Nearly every server composes the names of its headers from a few words, in its own order:
//! `x-ratelimit-limit-requests`, `x-ratelimit-requests-limit`, `anthropic-ratelimit-tokens-reset`,
//! `x-rate-limit-remaining-minute`. A name is therefore read as
//!
//! - the *family*, which is everything before `ratelimit`: `anthropic`, `x-post`;
//! - one word for the *field*: `limit`, `remaining`, `used`, `reset`, `interval`, ...;
//! - words for the unit of the value: `ms`, `seconds`, `after`;
//! - the *label*, which is all other words: `requests`, `minute`, `input-tokens`.
//!
//! Headers with the same family and label report one limit. A name without `ratelimit` is
//! translated into this grammar: by a table of synonyms, or by what it counts
//! (`x-daily-requests-left`).

use std::time::Duration;

use super::time::unit_of_time;
use super::time::{MILLISECOND, SECOND};
use crate::Unit;

/// The longest name that is read. Longer names are not names of limits.
const LONGEST: usize = 96;

/// The meaning of the value of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    Limit,
    Remaining,
    Used,
    /// The used share of the limit, where 1 is the whole.
    Share,
    Reset,
    Window,
    /// The unit of the window: `day`.
    TimeUnit,
    /// A time with the meaning of `Retry-After`.
    Retry,
    /// A wait that a server sends with each response. It counts only for a refusal.
    Wait,
    /// The name of the limit.
    Name,
    Scope,
    /// Policies of the IETF drafts.
    Policy,
    /// The value holds the whole limit: a draft's field, `limit=1, remaining=2`, `32/40`, or only
    /// the limit.
    Whole,
    /// A mark that a limit refused the request, whatever the status says.
    Mark,
}

/// A header name that is about a limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Name {
    /// The words before `ratelimit`, without `x`.
    pub(super) family: String,
    /// The text before the field, as it is written: `x-ratelimit` and `ratelimit` may report two
    /// limits.
    pub(super) spelling: String,
    pub(super) label: String,
    pub(super) field: Field,
    /// The unit of a time, if the name contains it.
    pub(super) unit: Option<Duration>,
    /// The name says that the time counts from now.
    pub(super) from_now: bool,
    /// The field is the first word: `limit-requests`, not `requests-limit`.
    pub(super) field_first: bool,
}

/// Names outside the grammar, each with a name of equal meaning inside the grammar.
const SYNONYMS: &[(&str, &str)] = &[
    // Beds24
    ("x-five-min-limit-remaining", "x-ratelimit-remaining-credits-5m"),
    ("x-five-min-limit-resets-in", "x-ratelimit-resets-in-credits-5m"),
    // Brightpearl
    ("brightpearl-next-throttle-period", "brightpearl-ratelimit-reset-ms"),
    // Bybit
    ("x-bapi-limit", "x-bapi-ratelimit-limit"),
    ("x-bapi-limit-status", "x-bapi-ratelimit-remaining"),
    ("x-bapi-limit-reset-timestamp", "x-bapi-ratelimit-reset"),
    // Cohere
    ("x-endpoint-monthly-call-limit", "x-ratelimit-limit-monthly"),
    ("x-trial-endpoint-call-limit", "x-trial-ratelimit-limit"),
    ("x-trial-endpoint-call-remaining", "x-trial-ratelimit-remaining"),
    // Crossref
    ("x-concurrency-limit", "x-ratelimit-concurrency-limit"),
    // ElevenLabs
    ("current-concurrent-requests", "x-ratelimit-used-concurrent-requests"),
    ("maximum-concurrent-requests", "x-ratelimit-limit-concurrent-requests"),
    // Etsy
    ("x-limit-per-day", "x-ratelimit-limit-day"),
    ("x-limit-per-second", "x-ratelimit-limit-second"),
    ("x-remaining-this-second", "x-ratelimit-remaining-second"),
    ("x-remaining-today", "x-ratelimit-remaining-day"),
    // football-data
    ("x-requestcounter-reset", "x-ratelimit-reset"),
    ("x-requests-available-minute", "x-ratelimit-remaining-minute"),
    // gRPC
    ("grpc-retry-pushback-ms", "x-retry-after-ms"),
    // Gorgias
    ("x-gorgias-account-api-call-limit", "x-gorgias-ratelimit"),
    // ip-api
    ("x-rl", "x-ratelimit-remaining"),
    ("x-ttl", "x-ratelimit-reset-after"),
    // Lightspeed
    ("x-ls-api-bucket-level", "x-ls-ratelimit"),
    // Pingdom
    ("req-limit-long", "x-ratelimit-long"),
    ("req-limit-short", "x-ratelimit-short"),
    // Salesforce
    ("sforce-limit-info", "sforce-ratelimit"),
    // Recharge
    ("x-recharge-limit", "x-recharge-ratelimit"),
    // Shopify
    ("x-shopify-shop-api-call-limit", "x-shopify-ratelimit"),
    ("http-x-shopify-shop-api-call-limit", "x-shopify-ratelimit"),
    // Traefik
    ("x-retry-in", "x-retry-after"),
    // Upbit
    ("remaining-req", "x-ratelimit"),
    // Walmart
    ("x-current-token-count", "x-ratelimit-remaining"),
    ("x-next-replenishment-time", "x-ratelimit-reset"),
    // WeatherAPI
    ("x-weatherapi-qpm-left", "x-weatherapi-ratelimit-remaining-rpm"),
    // Xero
    ("x-appminlimit-remaining", "x-app-ratelimit-remaining-minute"),
    ("x-daylimit-remaining", "x-ratelimit-remaining-day"),
    ("x-minlimit-remaining", "x-ratelimit-remaining-minute"),
];

/// Prefixes that are used instead of `ratelimit`.
const PREFIXES: &[(&str, &str)] = &[
    ("anthropic-fast-", "anthropic-fast-ratelimit-"),
    ("anthropic-priority-", "anthropic-priority-ratelimit-"),
    ("concurrency-limit-", "ratelimit-concurrency-"),
    ("ratelimitbysize-", "ratelimit-tokens-"),
    ("x-ratelimitbysize-", "x-ratelimit-tokens-"),
    ("x-burstlimit-", "x-ratelimit-burst-"),
    ("x-concurrency-limit-", "x-ratelimit-concurrency-"),
    ("x-concurrencylimit-", "x-ratelimit-concurrency-"),
    // EVE
    ("x-esi-error-limit-", "x-esi-ratelimit-errors-"),
    // Nexus Mods
    ("x-rl-", "x-ratelimit-"),
    ("x-tokenlimit-", "x-ratelimit-tokens-"),
    // Mashery
    ("x-accesstoken-qps-", "x-accesstoken-ratelimit-qps-"),
    ("x-accesstoken-quota-", "x-accesstoken-ratelimit-quota-"),
    ("x-packagekey-qps-", "x-packagekey-ratelimit-qps-"),
    ("x-packagekey-quota-", "x-packagekey-ratelimit-quota-"),
    ("x-plan-qps-", "x-plan-ratelimit-qps-"),
    ("x-plan-quota-", "x-plan-ratelimit-quota-"),
    ("x-planmethod-qps-", "x-planmethod-ratelimit-qps-"),
    ("x-planmethod-quota-", "x-planmethod-ratelimit-quota-"),
    // X
    ("x-app-limit-24hour-", "x-app-ratelimit-24hour-"),
    ("x-user-limit-24hour-", "x-user-ratelimit-24hour-"),
];

impl Name {
    /// Reads a name in lower case. Returns `None` if the name is not about a limit. `is_header`
    /// returns whether the response has a header of a name.
    pub(super) fn parse(name: &str, is_header: &dyn Fn(&str) -> bool) -> Option<Name> {
        if name.len() > LONGEST {
            return None;
        }
        let has_base = |field: &str| {
            name.rfind(field).is_some_and(|at| is_header(name[..at].trim_end_matches(['-', '_'])))
        };
        let name = name.replace('_', "-");
        let synonym = SYNONYMS.iter().find(|(from, _)| *from == name).map(|(_, to)| (*to).to_owned());
        let prefixed = || {
            let (rest, to) = PREFIXES.iter().find_map(|(from, to)| Some((name.strip_prefix(from)?, to)))?;
            Some(format!("{to}{rest}"))
        };
        let name = synonym.or_else(prefixed).or_else(|| counted(&name)).unwrap_or(name);

        let mut words: Vec<&str> = name.split(['-', '.']).filter(|w| !w.is_empty()).collect();
        if words.starts_with(&["http", "x"]) {
            // CGI's name for a header.
            words.remove(0);
        }
        if let Some(retry) = retry(&words) {
            return Some(retry);
        }
        let (before, after) = split_at_keyword(&words)?;
        let spelling = words[..words.len() - after.len()].join("-");
        let (after_words, before): (Vec<_>, Vec<_>) =
            (after.iter().flat_map(|w| parts(w)).collect(), before.iter().filter(|w| **w != "x").collect());
        let family = before.iter().map(|w| **w).collect::<Vec<_>>().join("-");
        let mut parsed = classify(&after_words, &has_base)?;
        parsed.family = family;
        parsed.spelling = spelling;
        // `x-daily-ratelimit-limit`: a window in the family is a label as well.
        if parsed.label.is_empty() && before.iter().any(|w| window_of(w).is_some()) {
            parsed.label.clone_from(&parsed.family);
        }
        Some(parsed)
    }
}

/// Translates names without `ratelimit` that count something, such as `x-daily-requests-left`,
/// `x-24-hour-usage` or `x-credits-remaining`. Returns a name inside the grammar:
/// `x-ratelimit-remaining-daily`.
fn counted(name: &str) -> Option<String> {
    let (before, field) = name.rsplit_once('-')?;
    let (before, noun) = before.rsplit_once('-').unwrap_or(("", before));
    let (before, noun) = match (field, noun) {
        ("remaining" | "left" | "used" | "limit", "calls" | "requests") => (before, ""),
        ("total", "calls") => (before, ""),
        ("remaining" | "left" | "used" | "limit", "credits") => (before, "-credits"),
        // Apollo. `x-app-usage` is not such a name.
        ("usage", _) if window_of(noun).is_some() => (&name[..name.len() - "-usage".len()], ""),
        _ => return None,
    };
    if before.split('-').any(|w| matches!(w, "ratelimit" | "rate" | "quota" | "anthropic")) {
        return None;
    }
    let is_window =
        |w: &&str| w.bytes().all(|b| b.is_ascii_digit()) || *w == "monthly" || window_of(w).is_some();
    let words = before.split('-').filter(|w| !w.is_empty());
    let (windows, family): (Vec<_>, Vec<_>) = words.partition(is_window);
    let family: String = family.into_iter().filter(|w| *w != "x").map(|w| format!("{w}-")).collect();
    let windows: String = windows.into_iter().map(|w| format!("-{w}")).collect();
    Some(format!("{family}ratelimit-{field}{noun}{windows}"))
}

/// Reads `retry-after`, `x-ms-retry-after-ms`, `x-ratelimit-retry-after-seconds`, ...
fn retry(words: &[&str]) -> Option<Name> {
    let at = words.iter().position(|w| matches!(*w, "retry" | "retryafter"))?;
    let rest = if words[at] == "retry" {
        let (second, rest) = words[at + 1..].split_first()?;
        matches!(*second, "after" | "in").then_some(rest)?
    } else {
        &words[at + 1..]
    };
    // AWS counts in milliseconds, although its names do not say so.
    let aws = words.contains(&"amz");
    let unit = rest.first().and_then(|w| unit_of(w)).or(aws.then_some(MILLISECOND));
    Some(Name { unit, from_now: true, ..Name::of(Field::Retry) })
}

/// Splits at `ratelimit`, at `rate-limit`, or at `rate`, `quota` or `throttle` before another word
/// of a field.
fn split_at_keyword<'a, 'w>(words: &'a [&'w str]) -> Option<(&'a [&'w str], &'a [&'w str])> {
    for (at, word) in words.iter().enumerate() {
        if word.ends_with("ratelimit") || matches!(*word, "ratelimits" | "ratelimited" | "ratelimiting") {
            // Strava's `readratelimit` belongs to the family as a whole word.
            let before = if word.starts_with("ratelimit") { at } else { at + 1 };
            return Some((&words[..before], &words[at + 1..]));
        }
        let next = words.get(at + 1).copied();
        if *word == "rate" && matches!(next, Some("limit" | "limits" | "limited" | "limiting")) {
            return Some((&words[..at], &words[at + 2..]));
        }
        if *word == "rate" && matches!(next, Some("remaining" | "used" | "reset")) {
            return Some((&words[..at], &words[at + 1..]));
        }
        if *word == "quota"
            && matches!(
                next,
                Some(
                    "remaining"
                        | "left"
                        | "used"
                        | "limit"
                        | "max"
                        | "reset"
                        | "resets"
                        | "resetson"
                        | "available"
                        | "interval"
                        | "time"
                )
            )
        {
            return Some((&words[..at], &words[at + 1..]));
        }
        if *word == "throttle"
            && matches!(
                next,
                Some("remaining" | "used" | "limit" | "reset" | "available" | "interval" | "time" | "wait")
            )
        {
            return Some((&words[..=at], &words[at + 1..]));
        }
    }
    None
}

/// Splits words that some servers join: `userlimit`, `resettime`.
fn parts<'w>(word: &&'w str) -> Vec<&'w str> {
    if matches!(*word, "timeremaining" | "nearlimit") {
        return vec![word];
    }
    for end in ["resettime", "resetat", "resetafter", "remaining", "limit", "reset"] {
        if let Some(start) = word.strip_suffix(end) {
            let ends: &[&'w str] = match end {
                "resettime" | "resetat" | "reset" => &["reset"],
                "resetafter" => &["reset", "after"],
                "remaining" => &["remaining"],
                _ => &["limit"],
            };
            return [start].into_iter().filter(|s| !s.is_empty()).chain(ends.iter().copied()).collect();
        }
    }
    vec![word]
}

impl Name {
    fn of(field: Field) -> Name {
        let (family, spelling, label) = Default::default();
        Name { family, spelling, label, field, unit: None, from_now: false, field_first: false }
    }
}

/// Finds the field among the words after `ratelimit`. `has_base` returns whether the response has a
/// header with the words before a word.
fn classify(words: &[&str], has_base: &dyn Fn(&str) -> bool) -> Option<Name> {
    if words.is_empty() {
        return Some(Name::of(Field::Whole));
    }
    // A balance that does not refill.
    if words.iter().any(|w| matches!(*w, "prepaid" | "onetime" | "balance")) {
        return None;
    }
    // A share of a limit, not a number of units.
    if words.iter().any(|w| matches!(*w, "percentage" | "percent")) {
        return None;
    }
    // A part of a limit, not the limit.
    if words.iter().any(|w| matches!(*w, "currentrequest" | "cost"))
        && !words.iter().any(|w| matches!(*w, "limit" | "remaining" | "reset"))
    {
        return None;
    }
    if let [label @ .., "time", "unit"] = words {
        return Some(Name { label: label.join("-"), ..Name::of(Field::TimeUnit) });
    }
    if words == ["after"] {
        return Some(Name::of(Field::Wait));
    }
    let Some(at) = position_of_field(words, has_base) else {
        return without_field(words);
    };
    let mut name = Name::of(field_of(words[at]));
    let mut label = Vec::new();
    let timed = matches!(name.field, Field::Reset | Field::Window | Field::Retry | Field::Wait);
    for (i, word) in words.iter().enumerate() {
        match *word {
            _ if i == at => {}
            "after" | "in"
                if name.field == Field::Reset && (i == at + 1 || is_link(words[i.saturating_sub(1)])) =>
            {
                name.from_now = true;
            }
            "length" | "in" if name.field == Field::Window => {}
            "time" if i + 1 == at && name.field != Field::Reset => label.push("time"),
            word if is_filler(word) => {}
            // `reset-after-seconds`, but not `reset-audio-seconds`.
            word if timed && (i == at + 1 || is_link(words[i.saturating_sub(1)])) && is_unit(word) => {
                name.unit = unit_of(word);
            }
            word => label.push(word),
        }
    }
    name.field_first = at == 0;
    // `x-rate-limit-remaining-seconds` is a time, `remaining-audio-seconds` is a count.
    let is_time = matches!(label[..], ["seconds" | "secs" | "sec" | "ms" | "milliseconds" | "time"]);
    if name.field == Field::Remaining && is_time {
        name.field = Field::Reset;
        name.unit = unit_of(label[0]).or(Some(SECOND));
        name.from_now = true;
        label.clear();
    }
    // `time-window`
    if name.field == Field::Window && label == ["time"] {
        label.clear();
    }
    // `limit-remaining` means `remaining`, and `limit-user-remaining` means `user-remaining`.
    if label.first() == Some(&"limit") && (at > 0 || label.len() == 1) {
        label.remove(0);
    }
    // `remaining-all` has the remaining permits of all limits, each with its window.
    if label == ["all"] {
        label.clear();
    }
    name.label = label.join("-");
    Some(name)
}

/// Returns the position of the field: the first word, otherwise the last one, otherwise a word
/// between them. The other words are the label, even if they can be fields: `limit-password-reset`
/// is a limit. `limit-user-remaining` is what remains if the response has a `limit-user`.
fn position_of_field(words: &[&str], has_base: &dyn Fn(&str) -> bool) -> Option<usize> {
    let strong = |i: usize| is_strong(words[i], words.get(i + 1));
    let is_suffix = |w: &&str| is_filler(w) || is_link(w) || unit_of(w).is_some();
    let end = words.iter().rposition(|w| !is_suffix(w)).unwrap_or(0);
    let last = Some(end).filter(|&i| strong(i) || field_of(words[i]) == Field::Limit);
    if words[0] == "limit" && end > 1 && !(last.is_some() && has_base(words[end])) {
        return Some(0);
    }
    let names = matches!(field_of(words[0]), Field::Name | Field::Scope | Field::Policy);
    let first = Some(0).filter(|_| strong(0) && !names);
    let inner = || (0..words.len()).find(|&i| strong(i));
    let weak = || words.iter().rposition(|w| field_of(w) == Field::Limit);
    first.or(last).or_else(inner).or_else(weak)
}

/// Returns whether a word says nothing about the limit.
fn is_filler(word: &str) -> bool {
    matches!(
        word,
        "at" | "time" | "timestamp" | "epoch" | "unix" | "utc" | "date" | "per" | "this" | "of" | "for"
    )
}

/// Returns whether a word is the field, whatever else is in the name.
fn is_strong(word: &str, next: Option<&&str>) -> bool {
    match word {
        // `tokens_usage_based` is a label.
        "usage" => next != Some(&"based"),
        _ => !matches!(field_of(word), Field::Limit | Field::Mark | Field::Whole),
    }
}

/// Returns the field that a word means, or [`Field::Whole`] if it means none.
fn field_of(word: &str) -> Field {
    match word {
        "limit" | "max" | "maximum" | "quota" | "total" | "allowed" | "allotted" | "capacity" => Field::Limit,
        "remaining" | "remain" | "remains" | "left" | "available" => Field::Remaining,
        "used" | "usage" | "count" | "consumed" | "observed" | "current" | "running" => Field::Used,
        "utilization" => Field::Share,
        "reset" | "resets" | "resetson" | "next" | "expire" | "expires" | "expired" | "expiry" => {
            Field::Reset
        }
        // GitHub Models names a wait like this.
        "timeremaining" => Field::Retry,
        "delay" | "towait" | "wait" => Field::Wait,
        "window" | "period" | "interval" | "duration" | "renewalperiod" => Field::Window,
        "policy" => Field::Policy,
        "name" | "bucket" | "resource" | "group" => Field::Name,
        "scope" => Field::Scope,
        "reason" | "problem" | "error" | "exceeded" | "breached" | "global" | "limited" | "throttled"
        | "status" | "state" => Field::Mark,
        _ => Field::Whole,
    }
}

/// Reads a name without a word for the field. `ratelimit-daily: 250000` is a limit, and
/// `zendesk-ratelimit-tickets: total=100; ...` is a whole limit.
fn without_field(words: &[&str]) -> Option<Name> {
    // Anthropic reports in `unified-status` whether it refused the request. A
    // `unified-overage-status`, or the status of one window, can report a refusal even in the
    // response to a granted request.
    if words.first() == Some(&"unified") && words != ["unified", "status"] {
        return None;
    }
    // Path of Exile sends the used part of `x-rate-limit-ip` in `x-rate-limit-ip-state`.
    if let [label @ .., "state"] = words
        && !label.is_empty()
    {
        return Some(Name { label: label.join("-"), ..Name::of(Field::Used) });
    }
    let mark = words.iter().any(|w| field_of(w) == Field::Mark);
    // `ratelimit-daily`, `rate-limit-24-hour`
    let is_number = |w: &str| w.bytes().all(|b| b.is_ascii_digit());
    let window = words.iter().all(|w| is_number(w) || window_of(w).is_some());
    let field = if mark { Field::Mark } else { Field::Whole };
    let mut name = Name::of(field);
    name.label = words.join("-");
    if !mark && window {
        name.field = Field::Limit;
    }
    Some(name)
}

/// Returns whether a word links a field and its unit.
fn is_link(word: &str) -> bool {
    matches!(word, "after" | "in" | "time" | "length")
}

/// Returns whether a word is a unit of time. `second` is a window: `reset-second`.
fn is_unit(word: &str) -> bool {
    word != "second" && unit_of(word).is_some()
}

/// Returns the unit of time that a word of a name means.
fn unit_of(word: &str) -> Option<Duration> {
    match word {
        "ms" | "msec" | "millis" | "millisecond" | "milliseconds" => Some(MILLISECOND),
        "s" | "sec" | "secs" | "second" | "seconds" => Some(SECOND),
        "minutes" => Some(60 * SECOND),
        _ => None,
    }
}

/// Returns the window that one word of a label means: `daily`, `10s`, `rpm`.
fn window_of(word: &str) -> Option<Duration> {
    let digits = word.find(|c: char| !c.is_ascii_digit())?;
    match (&word[..digits], &word[digits..]) {
        ("", "rps" | "tps" | "qps") => Some(SECOND),
        ("", "rpm" | "tpm") => Some(60 * SECOND),
        ("", "rph" | "tph") => Some(3600 * SECOND),
        ("", "rpd" | "tpd") => Some(86_400 * SECOND),
        // A single letter is not a unit of time.
        ("", unit) if unit.len() > 1 => unit_of_time(unit),
        ("", _) => None,
        (number, unit) => unit_of_time(unit)?.checked_mul(number.parse().ok()?),
    }
}

/// Returns the window that a label means: `minute`, `req-10-second`, `1m`.
pub(super) fn label_window(label: &str) -> Option<Duration> {
    let mut number = None;
    for word in label.split('-') {
        // `audio-seconds` is a unit; `30-seconds` is a window.
        let is_unit = number.is_none() && matches!(word, "seconds" | "minutes" | "hours" | "days");
        if let Some(window) = window_of(word).filter(|_| !is_unit) {
            return window.checked_mul(number.unwrap_or(1)).filter(|w| !w.is_zero());
        }
        number = word.parse().ok();
    }
    None
}

/// Returns the unit that a label names. The label of a window or of a resource means requests.
pub(super) fn label_unit(label: &str) -> Option<Unit> {
    let words: Vec<&str> = label.split('-').collect();
    let mut unit = Some(Unit::Requests);
    for (i, word) in words.iter().enumerate() {
        unit = match *word {
            "tokens" | "tpm" | "tpd" | "tph" | "tps" => Some(Unit::Tokens),
            // An `api-token` identifies the client.
            "token" => match i.checked_sub(1).map(|i| words[i]) {
                Some("api" | "access" | "auth" | "user" | "per" | "bearer") => continue,
                _ => Some(Unit::Tokens),
            },
            "bytes" | "bandwidth" => Some(Unit::Bytes),
            "points" | "point" | "complexity" | "cost" | "weight" | "credits" | "units" => Some(Unit::Points),
            "concurrent" | "concurrency" => Some(Unit::Concurrency),
            "requests" | "request" | "req" | "calls" => Some(Unit::Requests),
            "pages" | "time" | "characters" | "chars" | "audio" | "images" | "unified" | "db" | "neurons"
            | "usd" | "errors" => {
                return None;
            }
            _ => continue,
        };
        if unit != Some(Unit::Requests) {
            return unit;
        }
    }
    unit
}
