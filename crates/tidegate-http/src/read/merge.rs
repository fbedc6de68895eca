//! Joins limits that headers report twice or in parts.
//!
//! Servers write one limit in two spellings (`x-ratelimit-limit`, `ratelimit-limit`), with and
//! without a label (`ratelimit-remaining` next to `x-ratelimit-remaining-minute`), or one part of
//! it under another name. Two limits are joined only if neither contradicts the other: see
//! [`ServerLimit::agrees`].

use super::MAX_LIMITS;
use super::limit::{ServerLimit, later};
use crate::When;

/// A limit, with the words of its headers that decide which other limits it can be joined with.
pub(super) struct Found {
    pub(super) family: String,
    pub(super) label: String,
    pub(super) limit: ServerLimit,
}

/// Joins limits that are the same limit. Returns them, and the reset of a group of limits that has
/// no counts.
pub(super) fn merge(found: Vec<Found>) -> (Vec<ServerLimit>, Option<When>) {
    let mut found = join_labels(join_spellings(found));
    let overall = take_overall(&mut found);
    (join_equal(found.into_iter().filter(|one| one.limit.has_values())), overall)
}

/// Removes limits with only a reset whose label is a part of the label of a limit with counts, and
/// returns the latest of the resets. `unified-reset` of Anthropic is such a reset next to
/// `unified-5h-reset`.
fn take_overall(found: &mut Vec<Found>) -> Option<When> {
    let is_counted = |limit: &ServerLimit| limit.limit.is_some() || limit.remaining.is_some();
    let counted = found.iter().filter(|one| is_counted(&one.limit));
    let counted: Vec<_> = counted.map(|one| (one.family.clone(), one.label.clone())).collect();
    let mut overall = None;
    found.retain(|one| {
        let is_whole = !is_counted(&one.limit)
            && counted.iter().any(|(family, label)| *family == one.family && is_part(&one.label, label));
        if is_whole {
            overall = overall.into_iter().chain(one.limit.reset).reduce(later);
        }
        !is_whole
    });
    overall
}

/// Joins limits with the same family and label, such as `x-ratelimit-reset` and `ratelimit-limit`.
fn join_spellings(found: Vec<Found>) -> Vec<Found> {
    let mut merged: Vec<Found> = Vec::new();
    for one in found {
        let same = |m: &&mut Found| {
            let unnamed =
                m.limit.name.is_none() || one.limit.name.is_none() || m.limit.name == one.limit.name;
            // Two members of one list are two limits, unless one of them adds to the other.
            let adds = m.limit.limit.is_none() != one.limit.limit.is_none()
                || m.limit.remaining.is_none() != one.limit.remaining.is_none()
                || m.limit.reset.is_none() != one.limit.reset.is_none()
                || m.limit == one.limit;
            m.family == one.family && m.label == one.label && unnamed && adds && m.limit.agrees(&one.limit)
        };
        match merged.iter_mut().find(same) {
            Some(other) => other.limit.absorb(one.limit),
            None => merged.push(one),
        }
    }
    merged
}

/// Joins a limit without a label to the only limit of its family that has a label. A reset or a
/// window without a label and without counts belongs to every limit of its family.
fn join_labels(mut found: Vec<Found>) -> Vec<Found> {
    let mut at = 0;
    while at < found.len() {
        let plain = found[at].limit.clone();
        let time_only = plain.limit.is_none() && plain.remaining.is_none();
        let labelled: Vec<usize> = (0..found.len())
            .filter(|&i| found[i].family == found[at].family && !found[i].label.is_empty())
            .filter(|&i| found[i].limit.has_values())
            .collect();
        let joins = found[at].label.is_empty() && (labelled.len() == 1 || time_only);
        let mut joined = false;
        for i in labelled.into_iter().filter(|_| joins) {
            let other = &mut found[i].limit;
            // A limit that has only a time has no unit.
            let unit = if time_only { other.unit } else { plain.unit };
            let plain = ServerLimit { name: None, unit, ..plain.clone() };
            if other.agrees(&plain) {
                other.absorb(plain);
                joined = true;
            }
        }
        if joined {
            found.remove(at);
        } else {
            at += 1;
        }
    }
    found
}

/// Returns whether `label` is the beginning of `of`, such as `tokens` of `tokens-minute`, and so
/// says no more.
fn is_part(label: &str, of: &str) -> bool {
    of.strip_prefix(label).is_some_and(|rest| rest.starts_with('-'))
}

/// Joins limits with equal counts if one of them has no name or a part of the other's name. Only
/// labels have parts: two names that are values of headers, such as those of the policies of the
/// draft, are two limits.
fn join_equal(limits: impl Iterator<Item = Found>) -> Vec<ServerLimit> {
    let mut merged: Vec<Found> = Vec::new();
    for one in limits {
        let Found { label, limit, .. } = &one;
        let same = |m: &&mut Found| {
            let other = &m.limit;
            let counted =
                other.limit.is_some() && other.limit == limit.limit && other.remaining == limit.remaining;
            let related = match (&other.name, &limit.name) {
                (Some(a), Some(b)) if *a == m.label || b == label => is_part(a, b) || is_part(b, a),
                (Some(_), Some(_)) => false,
                _ => true,
            };
            other.agrees(limit) && ((counted && limit.remaining.is_some() && related) || other == limit)
        };
        match merged.iter_mut().find(same) {
            Some(other) => other.limit.absorb(one.limit),
            None => merged.push(one),
        }
    }
    merged.truncate(MAX_LIMITS);
    merged.into_iter().map(|one| one.limit).collect()
}
