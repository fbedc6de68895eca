//! The name of a member.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

/// Names of up to this many bytes are stored inline. A refusal carries a name: cloning an `Arc`
/// instead would make all refused threads write to one cache line.
const SHORT: usize = 22;

/// The name of a member of an [`AllOf`](crate::AllOf).
///
/// Converted from a `&str`, a `String` or an `Arc<str>`. A name of up to 22 bytes is stored inline;
/// a longer name is allocated once and shared by its clones.
///
/// # Examples
///
/// ```
/// use tidegate::all_of::Name;
///
/// let name = Name::from("requests per minute");
/// assert_eq!(name, "requests per minute");
/// assert_eq!(name.len(), 19); // it dereferences to a `str`
/// ```
#[derive(Clone)]
pub struct Name(Repr);

#[derive(Clone)]
enum Repr {
    Short { len: u8, bytes: [u8; SHORT] },
    Long(Arc<str>),
}

impl Name {
    /// Returns the bytes of the name, which are enough for comparing.
    pub(super) fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Repr::Short { len, bytes } => bytes.get(..usize::from(*len)).unwrap_or(bytes),
            Repr::Long(name) => name.as_bytes(),
        }
    }

    /// Returns the name as a string.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match &self.0 {
            // The bytes were copied from a `str`, so this does not fail.
            Repr::Short { .. } => std::str::from_utf8(self.as_bytes()).unwrap_or_default(),
            Repr::Long(name) => name,
        }
    }

    fn short(name: &str) -> Option<Name> {
        let mut bytes = [0; SHORT];
        bytes.get_mut(..name.len())?.copy_from_slice(name.as_bytes());
        Some(Name(Repr::Short { len: u8::try_from(name.len()).ok()?, bytes }))
    }
}

impl From<&str> for Name {
    fn from(name: &str) -> Name {
        Name::short(name).unwrap_or_else(|| Name(Repr::Long(name.into())))
    }
}

impl From<String> for Name {
    fn from(name: String) -> Name {
        Name::from(name.as_str())
    }
}

impl From<&String> for Name {
    fn from(name: &String) -> Name {
        Name::from(name.as_str())
    }
}

impl From<Arc<str>> for Name {
    fn from(name: Arc<str>) -> Name {
        Name::short(&name).unwrap_or(Name(Repr::Long(name)))
    }
}

impl Deref for Name {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl AsRef<str> for Name {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Name) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Name {}

impl PartialEq<str> for Name {
    fn eq(&self, other: &str) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl PartialEq<&str> for Name {
    fn eq(&self, other: &&str) -> bool {
        self == *other
    }
}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_its_string_whatever_its_length() {
        for len in [0, 1, SHORT - 1, SHORT, SHORT + 1, 1000] {
            let name = "ä".repeat(len / 2) + if len % 2 == 1 { "x" } else { "" };
            assert_eq!(name.len(), len);
            let (borrowed, owned) = (Name::from(&name), Name::from(Arc::<str>::from(&*name)));
            assert_eq!(borrowed, owned);
            assert_eq!(borrowed.as_str(), name);
            assert_eq!(borrowed, Name::from(name.clone()));
            assert_eq!(format!("{owned:?} {owned}"), format!("{name:?} {name}"));
            assert!(owned != Name::from(name + "x"));
        }
    }
}
