//! What to write instead of a name that no policy or field has.

use super::{KINDS, Schema};

/// Names that other libraries and papers give to a kind.
const OTHER_KINDS: &[(&str, &str)] = &[
    ("gcra", "token_bucket"),
    ("golang", "token_bucket"),
    ("guava", "smooth_bursty"),
    ("rate_limiter", "smooth_bursty"),
    ("paced", "smooth_bursty, and max_burst 0s behind its rate"),
    ("warm_up", "smooth_warming_up"),
    ("warming_up", "smooth_warming_up"),
    ("leaky", "leaky_bucket"),
    ("nginx", "leaky_bucket"),
    ("queue", "leaky_bucket"),
    ("counter", "fixed_window"),
    ("window", "fixed_window"),
    ("sliding_counter", "sliding_estimate"),
    ("sliding_window_counter", "sliding_estimate"),
    ("log", "sliding_log"),
    ("sliding_window_log", "sliding_log"),
    ("none", "unlimited"),
    ("no_limit", "unlimited"),
    ("off", "unlimited"),
    ("deny", "deny_all"),
    ("block", "deny_all"),
];

/// Names of a field in other libraries, or of a method, with what to write for a kind that has this
/// field.
const OTHER_FIELDS: &[(&str, &[&str])] = &[
    ("burst", &["max_burst", "capacity", "nodelay"]),
    ("max_burst", &["burst"]),
    ("capacity", &["burst", "with_capacity"]),
    ("max", &["burst", "capacity"]),
    ("size", &["burst", "capacity"]),
    ("start_empty", &["start_with 0"]),
    ("initial", &["start_with"]),
    ("start_full", &["start_with"]),
    ("in_steps", &["interval_refill"]),
    ("delay", &["nodelay"]),
    ("timeout", &["max_wait"]),
    ("segments", &["cells"]),
    ("buckets", &["cells"]),
    ("samples", &["cells"]),
    ("aligned", &["at_wall_clock 0s"]),
    ("warmup", &["warm_up"]),
];

/// Returns the name in lower case, without signs between words: `TokenBucket` and `token_bucket`
/// are then equal.
fn plain(name: &str) -> String {
    name.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

/// Returns how many letters must be added, removed or replaced to turn one word into the other.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in other.iter().enumerate() {
            let replaced = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[other.len()]
}

/// Returns the known name that is nearest to a misspelt name, if one is near.
fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // A name from outside may be a whole file.
    let name = Some(plain(name)).filter(|name| name.len() <= 40)?;
    let near = names.map(|known| (distance(&name, &plain(known)), known));
    let near = near.filter(|(distance, known)| *distance <= known.len() / 4);
    near.min_by_key(|(distance, _)| *distance).map(|(_, known)| known)
}

/// Returns the kind that was probably meant by a name.
pub(super) fn kind(name: &str) -> Option<&'static str> {
    let other = OTHER_KINDS.iter().find(|(other, _)| plain(other) == plain(name));
    other.map(|(_, kind)| *kind).or_else(|| nearest(name, KINDS.iter().map(|kind| kind.name)))
}

/// Returns the field of a kind that was probably meant by a name, in the form to write.
pub(super) fn field(kind: &Schema, name: &str) -> Option<String> {
    let names = kind.fields.iter().map(|(name, _)| *name).filter(|name| *name != "rate");
    if let Some(near) = nearest(name, names) {
        return Some(near.into());
    }
    let (_, known) = OTHER_FIELDS.iter().find(|(other, _)| plain(other) == plain(name))?;
    let has = |write: &&&str| write.split(' ').next().is_some_and(|field| kind.has(field));
    let known: Vec<_> = known.iter().filter(has).copied().collect();
    (!known.is_empty()).then(|| known.join(" or "))
}
