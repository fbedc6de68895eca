//! Reads the floats of the recordings.

use serde::{Deserialize, Deserializer};

/// A number, or one of the words for numbers that JSON does not have.
pub(crate) fn float<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Float {
        Number(f64),
        Word(String),
    }
    match Float::deserialize(deserializer)? {
        Float::Number(number) => Ok(number),
        Float::Word(word) => match word.as_str() {
            "inf" => Ok(f64::INFINITY),
            "-inf" => Ok(f64::NEG_INFINITY),
            "nan" => Ok(f64::NAN),
            _ => Err(serde::de::Error::custom(format!("{word:?} is not a number, \"inf\" or \"nan\""))),
        },
    }
}
