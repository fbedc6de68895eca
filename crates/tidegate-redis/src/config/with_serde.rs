//! A configuration as a map, read by the rules of a line.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::value::MapDeserializer;
use serde::de::{
    self, Deserialize, Deserializer, IgnoredAny, IntoDeserializer, MapAccess, SeqAccess, Visitor,
};
use serde::ser::{Serialize, SerializeMap, Serializer};
use tidegate::PolicyConfig;

use super::{ALONE, LimiterConfig, ONLY, bad};
use crate::error::{BuildError, FIELDS, has_password_field, may_be_secret, other_fields};
use crate::key;

/// Writes a map, without the user and the password of the address.
impl Serialize for LimiterConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        match &self.limits[..] {
            [] => {}
            // The policy is written as a line: its fields would be mixed with those of the store.
            [(name, limit)] if name == ONLY => map.serialize_entry("limit", &limit.to_string())?,
            limits => {
                let limits = limits.iter().map(|(name, limit)| (name, limit.to_string()));
                map.serialize_entry("limits", &limits.collect::<BTreeMap<_, _>>())?;
            }
        }
        for (field, value) in self.fields() {
            match self.in_use.filter(|_| field == "in_use") {
                Some(limit) => map.serialize_entry(field, &limit)?,
                None => map.serialize_entry(field, &value)?,
            }
        }
        if self.leased {
            map.serialize_entry("leased", &true)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for LimiterConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<LimiterConfig, D::Error> {
        deserializer.deserialize_any(Entries)
    }
}

struct Entries;

impl<'de> Visitor<'de> for Entries {
    type Value = LimiterConfig;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a limiter: a line, or a map of a policy's fields and those of a store")
    }

    fn visit_str<E: de::Error>(self, line: &str) -> Result<LimiterConfig, E> {
        line.parse().map_err(E::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<LimiterConfig, A::Error> {
        let mut config = LimiterConfig::new(Vec::new());
        let mut policy: Vec<(String, Value)> = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            let field = FIELDS.iter().find(|field| **field == name);
            match (name.as_str(), field) {
                (_, Some(&"leased")) => match map.next_value()? {
                    Value::Flag(true) => config.set("leased", "").map_err(de::Error::custom)?,
                    Value::Flag(false) => {}
                    // The value may be an address.
                    _ => return Err(de::Error::custom(bad("leased", "true or false"))),
                },
                (_, Some(field)) => {
                    // The value of each of these fields is a text, except that the value of
                    // `in_use` may be a number. Any other value becomes an empty text, which `set`
                    // refuses with an error that names the allowed values of the field.
                    let value = match (map.next_value()?, *field) {
                        (Value::Text(value), _) => value,
                        (Value::Count(number), "in_use") => number.to_string(),
                        (Value::Number(number), "in_use") => number.to_string(),
                        (Value::Factor(factor), "in_use") => factor.to_string(),
                        (Value::Flag(flag), "in_use") => flag.to_string(),
                        _ => String::new(),
                    };
                    config.set(field, &value).map_err(de::Error::custom)?;
                }
                ("limits" | "limit", None) if !config.limits.is_empty() => {
                    return Err(de::Error::custom(bad("limit", "set once, or limits instead")));
                }
                ("limits", None) => {
                    let Limits(limits) = map.next_value()?;
                    config.limits = limits;
                }
                ("limit", None) => {
                    let Limit(limit) = map.next_value()?;
                    config.limits.push((ONLY.into(), limit));
                }
                _ if may_be_secret(&name) => {
                    return Err(de::Error::custom(BuildError::Unknown { field: "an address".into() }));
                }
                // No policy has this field. The error of `set` says what to write.
                ("share_of", None) => config.set("while_away", "").map_err(de::Error::custom)?,
                (_, None) => {
                    let value: Value = map.next_value()?;
                    if matches!(&value, Value::Text(text) if may_be_secret(text)) {
                        let error = BuildError::Unknown { field: name };
                        return Err(de::Error::custom(error));
                    }
                    policy.push((name, value));
                }
            }
        }
        if config.in_use.is_some() && policy.iter().any(|(field, _)| field == "policy") {
            return Err(de::Error::custom(bad("in_use", ALONE)));
        }
        if config.in_use.is_none() && config.limits.is_empty() {
            config.limits.push((ONLY.into(), of_fields(policy).map_err(de::Error::custom)?));
        } else if let Some((field, _)) = policy.into_iter().next() {
            return Err(de::Error::custom(BuildError::Unknown { field }));
        }
        config.checked().map_err(de::Error::custom)
    }
}

/// Reads a policy from fields that are mixed with those of a limiter.
fn of_fields(fields: Vec<(String, Value)>) -> Result<PolicyConfig, String> {
    let names: Vec<_> = fields.iter().map(|(name, _)| format!("{name}: ")).collect();
    match fields.iter().find(|(name, _)| name == "policy") {
        None => {
            return Err(
                "a limiter needs limit, limits, in_use, or policy and the fields of that policy".into()
            );
        }
        Some((_, Value::Text(text))) if text.contains(char::is_whitespace) => {
            let allowed =
                "the name of a policy; a line is written as limit = \"token_bucket 100/s burst 20\"";
            return Err(bad("policy", allowed).to_string());
        }
        Some(_) => {}
    }
    let policy = MapDeserializer::<_, de::value::Error>::new(fields.into_iter());
    PolicyConfig::deserialize(policy).map_err(|error| {
        let error = error.to_string();
        // The error of a field that the policy does not have begins with the field.
        let is_unknown = names.iter().any(|name| error.starts_with(name));
        if is_unknown { format!("{error}; {}", other_fields()) } else { error }
    })
}

/// A policy, as a line or a map. The error of a line that may be an address does not show the line.
struct Limit(PolicyConfig);

impl<'de> Deserialize<'de> for Limit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Limit, D::Error> {
        struct LineOrMap;

        impl<'de> Visitor<'de> for LineOrMap {
            type Value = Limit;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a policy: a line, or a map of its fields")
            }

            fn visit_str<E: de::Error>(self, line: &str) -> Result<Limit, E> {
                if may_be_secret(line) {
                    return Err(E::custom(bad("limit", "a policy, and not an address")));
                }
                line.parse().map(Limit).map_err(E::custom)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Limit, A::Error> {
                PolicyConfig::deserialize(de::value::MapAccessDeserializer::new(map)).map(Limit)
            }
        }

        deserializer.deserialize_any(LineOrMap)
    }
}

/// Limits by their names, in the order of the names.
struct Limits(Vec<(String, PolicyConfig)>);

impl<'de> Deserialize<'de> for Limits {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Limits, D::Error> {
        struct ByName;

        impl<'de> Visitor<'de> for ByName {
            type Value = Limits;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("limits by their names")
            }

            /// The error does not show the line, which may have an address.
            fn visit_str<E: de::Error>(self, _: &str) -> Result<Limits, E> {
                Err(E::custom(bad("limits", "a map from names to policies; one policy is written as limit")))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Limits, A::Error> {
                let mut limits = BTreeMap::new();
                while let Some(name) = map.next_key::<String>()? {
                    if has_password_field(&name) || !key::is_name(&name) && may_be_secret(&name) {
                        return Err(de::Error::custom(bad("limits", "policies by name, and not by address")));
                    }
                    let Limit(limit) = map.next_value()?;
                    if limits.insert(name.clone(), limit).is_some() {
                        return Err(de::Error::custom(BuildError::Twice { name }));
                    }
                }
                Ok(Limits(limits.into_iter().collect()))
            }
        }

        deserializer.deserialize_any(ByName)
    }
}

/// A value of a policy's field.
enum Value {
    Text(String),
    Flag(bool),
    Count(u64),
    Number(i64),
    Factor(f64),
    Nothing,
    /// A list or a map.
    Several,
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
        struct AnyValue;

        impl<'de> Visitor<'de> for AnyValue {
            type Value = Value;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, a number, true or false")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Value, E> {
                Ok(Value::Text(text.into()))
            }

            fn visit_bool<E: de::Error>(self, flag: bool) -> Result<Value, E> {
                Ok(Value::Flag(flag))
            }

            fn visit_u64<E: de::Error>(self, count: u64) -> Result<Value, E> {
                Ok(Value::Count(count))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Value, E> {
                Ok(Value::Number(number))
            }

            fn visit_f64<E: de::Error>(self, factor: f64) -> Result<Value, E> {
                Ok(Value::Factor(factor))
            }

            fn visit_unit<E: de::Error>(self) -> Result<Value, E> {
                Ok(Value::Nothing)
            }

            fn visit_none<E: de::Error>(self) -> Result<Value, E> {
                Ok(Value::Nothing)
            }

            fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
                deserializer.deserialize_any(self)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
                while list.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Value::Several)
            }

            /// With its feature `arbitrary_precision`, `serde_json` passes a number as a map of one
            /// entry, the number's text.
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
                while let Some(name) = map.next_key::<String>()? {
                    if name == "$serde_json::private::Number" {
                        return number(&map.next_value::<String>()?);
                    }
                    map.next_value::<IgnoredAny>()?;
                }
                Ok(Value::Several)
            }
        }

        deserializer.deserialize_any(AnyValue)
    }
}

/// Reads the text of a number.
fn number<E: de::Error>(text: &str) -> Result<Value, E> {
    let whole = text.parse().map(Value::Count).or_else(|_| text.parse().map(Value::Number));
    whole.or_else(|_| text.parse().map(Value::Factor)).map_err(E::custom)
}

impl<'de, E: de::Error> IntoDeserializer<'de, E> for Value {
    type Deserializer = ValueDeserializer<E>;

    fn into_deserializer(self) -> ValueDeserializer<E> {
        ValueDeserializer(self, std::marker::PhantomData)
    }
}

struct ValueDeserializer<E>(Value, std::marker::PhantomData<E>);

impl<'de, E: de::Error> Deserializer<'de> for ValueDeserializer<E> {
    type Error = E;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, E> {
        match self.0 {
            Value::Text(text) => visitor.visit_string(text),
            Value::Flag(flag) => visitor.visit_bool(flag),
            Value::Count(count) => visitor.visit_u64(count),
            Value::Number(number) => visitor.visit_i64(number),
            Value::Factor(factor) => visitor.visit_f64(factor),
            Value::Nothing => visitor.visit_unit(),
            Value::Several => Err(E::invalid_type(de::Unexpected::Other("a list or a map"), &visitor)),
        }
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}
