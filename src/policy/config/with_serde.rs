//! A configuration as a map, read by the rules of a line, so that the errors are equal, too.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::{self, Serialize, SerializeMap, Serializer};

use super::{ConfigError, Given, KINDS, PolicyConfig, Value};
use crate::policy::AnyPolicy;

impl Serialize for PolicyConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let fields = self.fields();
        let mut map = serializer.serialize_map(Some(1 + fields.len()))?;
        map.serialize_entry("policy", self.name())?;
        for (name, value) in fields {
            match value {
                Value::Flag => map.serialize_entry(name, &true)?,
                Value::Number(number) => map.serialize_entry(name, &number)?,
                Value::Factor(factor) if factor.is_finite() => map.serialize_entry(name, &factor)?,
                // Some formats write it as nothing, which would read back as a field that is not
                // set.
                Value::Factor(factor) => {
                    return Err(ser::Error::custom(format_args!("{name} {factor} is not finite")));
                }
                Value::Rate(_) | Value::Span(_) => map.serialize_entry(name, &value.to_string())?,
            }
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for PolicyConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<PolicyConfig, D::Error> {
        deserializer.deserialize_any(Entries)
    }
}

/// Writes the [configuration in force](AnyPolicy::config).
impl Serialize for AnyPolicy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.config().serialize(serializer)
    }
}

/// Reads a [`PolicyConfig`], and creates the policy from it at once.
impl<'de> Deserialize<'de> for AnyPolicy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<AnyPolicy, D::Error> {
        AnyPolicy::try_from(PolicyConfig::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

/// Reads a line, or the entries of a map. The name of the kind may be anywhere in the map.
struct Entries;

impl<'de> Visitor<'de> for Entries {
    type Value = PolicyConfig;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a policy: a line, such as \"token_bucket 100/s burst 20\", or a map of its name as `policy`, its \
             rate and its other fields",
        )
    }

    fn visit_str<E: de::Error>(self, line: &str) -> Result<PolicyConfig, E> {
        line.parse().map_err(E::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<PolicyConfig, A::Error> {
        let mut entries = Vec::new();
        while let Some((name, value)) = map.next_entry::<String, Text>()? {
            entries.push((name, value));
        }
        let kind = entries.iter().position(|(name, _)| name == "policy");
        let kind = kind.and_then(|at| entries.remove(at).1.text);
        let kind = kind.ok_or_else(|| {
            let kinds: Vec<_> = KINDS.iter().map(|kind| kind.name).collect();
            de::Error::custom(format_args!("a policy needs the field `policy`, one of {}", kinds.join(", ")))
        })?;
        if kind.contains(char::is_whitespace) {
            let message = "the field `policy` is the name of a policy; a line stands in place of the map";
            return Err(de::Error::custom(message));
        }
        let mut given = Given::of(&kind).map_err(de::Error::custom)?;
        for (name, value) in &entries {
            given.set(name, value.text.as_deref()).map_err(de::Error::custom)?;
        }
        let is_number = |field| entries.iter().any(|(name, value)| name == field && value.is_number);
        given.config().map_err(|error| match &error {
            ConfigError::Rate(_) if is_number("rate") => {
                de::Error::custom(format_args!("{error}, as a string"))
            }
            ConfigError::Value { field, allowed, .. } if is_number(field) && allowed.contains("unit") => {
                de::Error::custom(format_args!("{error}, as a string"))
            }
            _ => de::Error::custom(error),
        })
    }
}

/// A value as the text of a line.
struct Text {
    /// `None` for a value without content.
    text: Option<String>,
    is_number: bool,
}

impl Text {
    const NOTHING: Text = Text { text: None, is_number: false };

    fn word(text: impl Into<String>) -> Text {
        Text { text: Some(text.into()), is_number: false }
    }

    fn number(text: impl Into<String>) -> Text {
        Text { text: Some(text.into()), is_number: true }
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Text, D::Error> {
        struct AnyValue;

        impl<'de> Visitor<'de> for AnyValue {
            type Value = Text;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, a number, true or false")
            }

            fn visit_str<E: de::Error>(self, value: &str) -> Result<Text, E> {
                Ok(Text::word(value))
            }

            fn visit_bool<E: de::Error>(self, value: bool) -> Result<Text, E> {
                Ok(Text::word(value.to_string()))
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Text, E> {
                Ok(Text::number(value.to_string()))
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Text, E> {
                Ok(Text::number(value.to_string()))
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Text, E> {
                // `Debug` keeps the point of 20.0, which is not a whole number.
                Ok(Text::number(format!("{value:?}")))
            }

            fn visit_unit<E: de::Error>(self) -> Result<Text, E> {
                Ok(Text::NOTHING)
            }

            fn visit_none<E: de::Error>(self) -> Result<Text, E> {
                Ok(Text::NOTHING)
            }

            fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Text, D::Error> {
                deserializer.deserialize_any(self)
            }

            /// With its feature `arbitrary_precision`, `serde_json` passes a number as a map of one
            /// entry, the number's text.
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Text, A::Error> {
                match map.next_entry::<String, String>()? {
                    Some((name, text)) if name == "$serde_json::private::Number" => Ok(Text::number(text)),
                    _ => Err(de::Error::invalid_type(de::Unexpected::Map, &self)),
                }
            }
        }

        deserializer.deserialize_any(AnyValue)
    }
}
