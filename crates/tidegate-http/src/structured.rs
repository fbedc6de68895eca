//! Structured field values (RFC 9651): reads a List, writes Strings and Byte Sequences.
//!
//! The fields `RateLimit` and `RateLimit-Policy` are Lists of Items. This module reads the whole
//! grammar of a List, and rejects exactly what RFC 9651 calls malformed. The crate `sfv` reads this
//! grammar too, but needs a newer compiler than this crate. A test compares the two parsers.
//!
//! The reader of responses is more lenient than RFC 9651 in two ways. It parses each line of a
//! field separately, so a malformed line does not affect the other lines. And it reads a line that
//! is not a List of names in the forms of older drafts and of vendors.

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

/// The largest Integer of RFC 9651: 15 digits.
pub(crate) const MAX_INTEGER: i64 = 999_999_999_999_999;

/// The most parameters of one item. Further parameters are ignored.
const MAX_PARAMS: usize = 256;

/// RFC 9651 section 4.2.7 asks parsers to accept Byte Sequences without padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// A value without its parameters.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Bare {
    Integer(i64),
    /// In thousandths, the full precision of a Decimal.
    Decimal(i64),
    String(String),
    Token(String),
    Bytes(Vec<u8>),
    Boolean(bool),
    /// Seconds since 1970.
    Date(i64),
    Display(String),
}

/// Parameters in the order of the field. A later parameter with an equal key replaces the earlier
/// value.
pub(crate) type Params = Vec<(String, Bare)>;

/// A member of a List.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Member {
    Item(Bare, Params),
    Inner(Vec<(Bare, Params)>, Params),
}

/// Reads a List. Returns `None` if it is malformed.
pub(crate) fn parse_list(field: &str) -> Option<Vec<Member>> {
    let mut input = Input { rest: field.as_bytes() };
    input.skip(b" ");
    let mut members = Vec::new();
    if input.rest.is_empty() {
        return Some(members);
    }
    loop {
        members.push(input.member()?);
        input.skip(b" \t");
        match input.next() {
            None => return Some(members),
            Some(b',') => input.skip(b" \t"),
            Some(_) => return None,
        }
    }
}

/// Returns whether a String can hold this text.
pub(crate) fn is_string(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b' '..=b'~'))
}

/// Writes a text as a String. A String must be [able to hold](is_string) the text.
pub(crate) fn push_string(out: &mut String, text: &str) {
    out.push('"');
    if text.bytes().any(|byte| matches!(byte, b'"' | b'\\')) {
        for c in text.chars() {
            if matches!(c, '"' | '\\') {
                out.push('\\');
            }
            out.push(c);
        }
    } else {
        out.push_str(text);
    }
    out.push('"');
}

/// Writes a Byte Sequence.
pub(crate) fn push_byte_sequence(out: &mut String, bytes: &[u8]) {
    out.push(':');
    BASE64.encode_string(bytes, out);
    out.push(':');
}

/// The part of the field that is not read yet.
struct Input<'a> {
    rest: &'a [u8],
}

impl Input<'_> {
    fn peek(&self) -> Option<u8> {
        self.rest.first().copied()
    }

    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    /// Consumes `byte` if it comes next.
    fn eat(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        if found {
            self.next();
        }
        found
    }

    fn skip(&mut self, bytes: &[u8]) {
        while self.peek().is_some_and(|b| bytes.contains(&b)) {
            self.next();
        }
    }

    fn take_while(&mut self, keep: impl Fn(u8) -> bool) -> String {
        let len = self.rest.iter().position(|&b| !keep(b)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(len);
        self.rest = rest;
        // Callers keep only ASCII.
        taken.iter().map(|&b| char::from(b)).collect()
    }

    fn member(&mut self) -> Option<Member> {
        if !self.eat(b'(') {
            return Some(Member::Item(self.bare()?, self.params()?));
        }
        let mut items = Vec::new();
        loop {
            self.skip(b" ");
            if self.eat(b')') {
                return Some(Member::Inner(items, self.params()?));
            }
            items.push((self.bare()?, self.params()?));
            if !matches!(self.peek()?, b' ' | b')') {
                return None;
            }
        }
    }

    fn params(&mut self) -> Option<Params> {
        let mut params = Params::new();
        while self.eat(b';') {
            self.skip(b" ");
            let key = self.key()?;
            let value = if self.eat(b'=') { self.bare()? } else { Bare::Boolean(true) };
            // A field with many distinct keys would take time quadratic in their number. RFC 9651
            // requires support for 256.
            match params.iter().position(|(k, _)| *k == key) {
                Some(at) => params[at].1 = value,
                None if params.len() < MAX_PARAMS => params.push((key, value)),
                None => {}
            }
        }
        Some(params)
    }

    fn key(&mut self) -> Option<String> {
        if !matches!(self.peek()?, b'a'..=b'z' | b'*') {
            return None;
        }
        Some(self.take_while(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'.' | b'*')))
    }

    fn bare(&mut self) -> Option<Bare> {
        match self.peek()? {
            b'-' | b'0'..=b'9' => self.number(),
            b'"' => self.quoted().map(Bare::String),
            b'A'..=b'Z' | b'a'..=b'z' | b'*' => Some(Bare::Token(self.take_while(is_token))),
            b':' => self.bytes(),
            b'?' => {
                self.next();
                match self.next()? {
                    b'0' => Some(Bare::Boolean(false)),
                    b'1' => Some(Bare::Boolean(true)),
                    _ => None,
                }
            }
            b'@' => {
                self.next();
                match self.number()? {
                    Bare::Integer(seconds) => Some(Bare::Date(seconds)),
                    _ => None,
                }
            }
            b'%' => self.display(),
            _ => None,
        }
    }

    fn number(&mut self) -> Option<Bare> {
        let sign = if self.eat(b'-') { -1 } else { 1 };
        let whole = self.take_while(|b| b.is_ascii_digit());
        if whole.is_empty() || whole.len() > 15 {
            return None;
        }
        let number: i64 = whole.parse().ok()?;
        if !self.eat(b'.') {
            return Some(Bare::Integer(sign * number));
        }
        let fraction = self.take_while(|b| b.is_ascii_digit());
        if whole.len() > 12 || fraction.is_empty() || fraction.len() > 3 {
            return None;
        }
        let thousandths: i64 = format!("{fraction:0<3}").parse().ok()?;
        Some(Bare::Decimal(sign * (number * 1000 + thousandths)))
    }

    fn quoted(&mut self) -> Option<String> {
        self.next();
        let mut out = String::new();
        loop {
            match self.next()? {
                b'"' => return Some(out),
                b'\\' => match self.next()? {
                    escaped @ (b'"' | b'\\') => out.push(char::from(escaped)),
                    _ => return None,
                },
                plain @ b' '..=b'~' => out.push(char::from(plain)),
                _ => return None,
            }
        }
    }

    fn bytes(&mut self) -> Option<Bare> {
        self.next();
        let text = self.take_while(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/' | b'='));
        if !self.eat(b':') {
            return None;
        }
        BASE64.decode(text).ok().map(Bare::Bytes)
    }

    fn display(&mut self) -> Option<Bare> {
        self.next();
        if !self.eat(b'"') {
            return None;
        }
        let mut out = Vec::new();
        loop {
            match self.next()? {
                b'"' => return String::from_utf8(out).ok().map(Bare::Display),
                b'%' => out.push(hex(self.next()?)? << 4 | hex(self.next()?)?),
                plain @ b' '..=b'~' => out.push(plain),
                _ => return None,
            }
        }
    }
}

fn is_token(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(&b)
}

/// Reads a lower-case digit only, as RFC 9651 requires.
fn hex(b: u8) -> Option<u8> {
    match b {
        b'0'..=b'9' => Some(b - b'0'),
        b'a'..=b'f' => Some(b - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
