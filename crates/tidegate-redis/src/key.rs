//! The names of keys.

use crate::terms::Kind;

/// The version of the values that are stored under keys. Two releases with different versions share
/// a server, and no key.
const VERSION: u32 = 1;

/// Whether a text can be part of a key: it does not end the tag, nor the part.
pub(crate) fn is_name(text: &str) -> bool {
    let is_allowed = |c: char| !matches!(c, '{' | '}' | ':' | ' ') && !c.is_control();
    (1..=200).contains(&text.len()) && text.chars().all(is_allowed)
}

/// Whether a text can be the tag of keys: what a cluster reads between the braces.
pub(crate) fn is_tag(text: &str) -> bool {
    let is_allowed = |c: char| !matches!(c, '{' | '}') && !c.is_control();
    (1..=500).contains(&text.len()) && text.chars().all(is_allowed)
}

/// The key of a limit. All limits of one tag lie in one slot of a cluster. The algorithm is part of
/// the name, so that two programs with different policies under one name do not destroy each
/// other's state.
pub(crate) fn of(prefix: &str, tag: &str, name: &str, kind: Kind) -> String {
    format!("{prefix}:{VERSION}:{{{tag}}}:{name}:{kind}")
}

/// The key by which a client tests what a server allows.
pub(crate) fn of_test(prefix: &str) -> String {
    format!("{prefix}:{VERSION}:self-test")
}

/// The keys of a limit of permits in use.
pub(crate) fn counting(prefix: &str, tag: &str) -> [String; 2] {
    ["holders", "ends"].map(|part| format!("{prefix}:{VERSION}:{{{tag}}}:counting:{part}"))
}

/// The key under which the processes of a prefix are counted. Keys of limits have a tag there.
pub(crate) fn of_clients(prefix: &str) -> String {
    format!("{prefix}:{VERSION}:clients")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_leave_its_place_in_a_key() {
        assert_eq!(of("tidegate", "user 1", "calls", Kind::Log), "tidegate:1:{user 1}:calls:log");
        for name in ["", "a:b", "a{b", "a}b", "a b", "a\n", &"a".repeat(201)] {
            assert!(!is_name(name), "{name:?}");
        }
        assert!(is_tag("user:42, of a") && !is_tag("a}b") && !is_tag(""));
    }
}
