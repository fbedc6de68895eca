//! [`Text`]: the value of a header while it is written.

use http::header::{HeaderMap, HeaderName, HeaderValue};

use crate::structured;

/// The value of a header while it is written. One buffer serves all headers of a response.
pub(super) struct Text(String);

impl Text {
    pub(super) fn new() -> Text {
        // Room for three limits with short names.
        Text(String::with_capacity(96))
    }

    /// Begins an item of a list.
    pub(super) fn item(&mut self, begin: &str) -> &mut Text {
        if !self.0.is_empty() {
            self.0.push_str(", ");
        }
        self.push(begin)
    }

    pub(super) fn push(&mut self, text: &str) -> &mut Text {
        self.0.push_str(text);
        self
    }

    pub(super) fn number(&mut self, number: u64) -> &mut Text {
        self.push(itoa::Buffer::new().format(number))
    }

    /// Adds a String of structured fields.
    pub(super) fn string(&mut self, text: &str) -> &mut Text {
        structured::push_string(&mut self.0, text);
        self
    }

    /// Adds a Byte Sequence of structured fields.
    pub(super) fn bytes(&mut self, bytes: &[u8]) -> &mut Text {
        structured::push_byte_sequence(&mut self.0, bytes);
        self
    }

    /// Replaces a header by the text, or removes the header if the text is empty. The buffer is
    /// then empty again.
    pub(super) fn insert(&mut self, name: HeaderName, headers: &mut HeaderMap) {
        // Every text is printable ASCII, which a header can carry.
        match HeaderValue::from_str(&self.0) {
            Ok(value) if !value.is_empty() => headers.insert(name, value),
            _ => headers.remove(name),
        };
        self.0.clear();
    }
}
