//! The names of keys.

use std::borrow::Cow;

/// The version of the values that are stored under keys. Two releases with different versions can
/// use one server, and share no key.
const VERSION: u32 = 1;

/// The end of the key under which processes are counted.
const OF_CLIENTS: &str = ":clients";

/// Returns whether a text can be part of a key: it ends neither the tag nor the part.
pub(crate) fn is_name(text: &str) -> bool {
    let is_allowed = |c: char| !matches!(c, '{' | '}' | ':' | ' ') && !c.is_control();
    (1..=200).contains(&text.len()) && text.chars().all(is_allowed)
}

/// Returns whether a text can be the tag of keys: the part that a cluster reads between the braces.
pub(crate) fn is_tag(text: &str) -> bool {
    let is_allowed = |c: char| !matches!(c, '{' | '}') && !c.is_control();
    (1..=500).contains(&text.len()) && text.chars().all(is_allowed)
}

/// The beginning of a tag that is the hash of a key.
const HASHED: &str = "sha1:";

/// The tag of a key that may be any text: the key itself, or its hash if the key cannot be a tag or
/// could be such a hash.
pub(crate) fn tag_of(key: &str) -> Cow<'_, str> {
    if is_tag(key) && !key.starts_with(HASHED) {
        return key.into();
    }
    format!("{HASHED}{}", sha1_smol::Sha1::from(key).digest()).into()
}

/// The key of a limit. All limits of one tag are in one slot of a cluster. The key ends with the
/// kind of the policy and the length of its window
/// ([`Terms::ending`](crate::terms::Terms::ending)), so that two programs with different policies
/// under one name do not destroy each other's state.
pub(crate) fn of(prefix: &str, tag: &str, name: &str, ending: &str) -> String {
    format!("{prefix}:{VERSION}:{{{tag}}}:{name}:{ending}")
}

/// The key by which a client tests what a server allows.
pub(crate) fn of_test(prefix: &str) -> String {
    format!("{prefix}:{VERSION}:self-test")
}

/// The keys of the check at the start of a program, a quarter of the slots of a cluster apart.
pub(crate) fn of_checks(prefix: &str) -> [String; 4] {
    ["a", "b", "c", "d"].map(|tag| format!("{prefix}:{VERSION}:{{{tag}}}:self-test"))
}

/// The key of a limit of permits in use.
pub(crate) fn counting(prefix: &str, tag: &str) -> String {
    format!("{prefix}:{VERSION}:{{{tag}}}:in-use")
}

/// The key under which the processes of a prefix are counted. Keys of limits have a tag where
/// this key has its last part.
pub(crate) fn of_clients(prefix: &str) -> String {
    format!("{prefix}:{VERSION}{OF_CLIENTS}")
}

/// Returns whether a key is such a key. The key of a limit ends with its kind.
#[cfg(feature = "simulation")]
pub(crate) fn is_of_clients(key: &[u8]) -> bool {
    key.ends_with(OF_CLIENTS.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_leave_its_part_of_a_key() {
        assert_eq!(of("tidegate", "user 1", "calls", "log"), "tidegate:1:{user 1}:calls:log");
        for name in ["", "a:b", "a{b", "a}b", "a b", "a\n", &"a".repeat(201)] {
            assert!(!is_name(name), "{name:?}");
        }
        assert!(is_tag("user:42, of a") && !is_tag("a}b") && !is_tag(""));
    }

    #[test]
    fn any_text_has_a_tag_of_its_own() {
        let long = "a".repeat(501);
        let hash = tag_of("{").into_owned();
        let texts = ["", "{", "a}b", "a\0b", "\n", "alice", "user:42, of a", "sha1:", &long, &hash];
        let tags: std::collections::BTreeSet<_> = texts.into_iter().map(tag_of).collect();
        assert!(tags.len() == texts.len() && tags.iter().all(|tag| is_tag(tag)), "{tags:?}");
        assert!(tags.contains("alice") && tags.contains("user:42, of a"));
    }
}
