//! Compares the parser with vectors that follow the words of RFC 9651, and with another parser.

use proptest::prelude::*;
use sfv::{BareItem, ListEntry};

use super::*;

fn item(bare: Bare) -> Option<Vec<Member>> {
    Some(vec![Member::Item(bare, Vec::new())])
}

#[test]
fn each_type_is_read() {
    assert_eq!(parse_list("42"), item(Bare::Integer(42)));
    assert_eq!(parse_list("-999999999999999"), item(Bare::Integer(-MAX_INTEGER)));
    assert_eq!(parse_list("-4.5"), item(Bare::Decimal(-4500)));
    assert_eq!(parse_list(r#""a \"b\" \\""#), item(Bare::String(r#"a "b" \"#.to_owned())));
    assert_eq!(parse_list("*foo123/456:x"), item(Bare::Token("*foo123/456:x".to_owned())));
    assert_eq!(parse_list(":aGVsbG8=:"), item(Bare::Bytes(b"hello".to_vec())));
    assert_eq!(parse_list(":aGVsbG8:"), item(Bare::Bytes(b"hello".to_vec())));
    assert_eq!(parse_list("?1"), item(Bare::Boolean(true)));
    assert_eq!(parse_list("@1659578233"), item(Bare::Date(1_659_578_233)));
    assert_eq!(parse_list(r#"%"f%c3%bc""#), item(Bare::Display("fü".to_owned())));
}

#[test]
fn lists_have_members_and_parameters() {
    let list = parse_list("  a;q=1;q=2;b , (1 2;c);d\t,\"\" ");
    let inner =
        vec![(Bare::Integer(1), Vec::new()), (Bare::Integer(2), vec![("c".to_owned(), Bare::Boolean(true))])];
    let params = vec![("q".to_owned(), Bare::Integer(2)), ("b".to_owned(), Bare::Boolean(true))];
    let expected = vec![
        Member::Item(Bare::Token("a".to_owned()), params),
        Member::Inner(inner, vec![("d".to_owned(), Bare::Boolean(true))]),
        Member::Item(Bare::String(String::new()), Vec::new()),
    ];
    assert_eq!(list, Some(expected));
    assert_eq!(parse_list(""), Some(Vec::new()));
}

#[test]
fn malformed_fields_are_refused_as_a_whole() {
    for field in [
        "a,",
        ",a",
        "a b",
        "1;",
        "1;=2",
        "1;Q=1",
        "\"open",
        "\"\\a\"",
        "\"\u{7f}\"",
        "\t1",
        "1000000000000000",
        "1234567890123.0",
        "1.",
        "1.2345",
        "--1",
        "-",
        ":aGVs",
        ":a*:",
        "?2",
        "@1.5",
        "%\"%C3%BC\"",
        "%\"%c3\"",
        "(1",
        "(1)(2)",
        "(1,2)",
        "é",
        "((1))",
    ] {
        assert_eq!(parse_list(field), None, "{field}");
    }
}

#[test]
fn parameters_beyond_any_use_are_left_out() {
    let field: String =
        std::iter::once("a".to_owned()).chain((0..1000).map(|i| format!(";k{i}={i}"))).collect();
    let Some([Member::Item(_, params)]) =
        parse_list(&field).as_deref().map(|m| m.first_chunk().cloned()).unwrap_or_default()
    else {
        panic!("one item");
    };
    assert_eq!(params.len(), MAX_PARAMS);
}

/// Reads a field with the other parser, and converts it into the types of this parser.
fn other(field: &str) -> Option<Vec<Member>> {
    let list: sfv::List = sfv::Parser::new(field).parse().ok()?;
    let bare = |bare: BareItem| match bare {
        BareItem::Integer(n) => Bare::Integer(n.into()),
        BareItem::Decimal(n) => Bare::Decimal(n.as_integer_scaled_1000().into()),
        BareItem::String(s) => Bare::String(s.into()),
        BareItem::Token(t) => Bare::Token(t.into()),
        BareItem::ByteSequence(b) => Bare::Bytes(b),
        BareItem::Boolean(b) => Bare::Boolean(b),
        BareItem::Date(d) => Bare::Date(d.unix_seconds().into()),
        BareItem::DisplayString(s) => Bare::Display(s),
    };
    let params = |p: sfv::Parameters| p.into_iter().map(|(k, v)| (k.into(), bare(v))).collect();
    let member = |entry| match entry {
        ListEntry::Item(item) => Member::Item(bare(item.bare_item), params(item.params)),
        ListEntry::InnerList(list) => {
            let items = list.items.into_iter().map(|i| (bare(i.bare_item), params(i.params)));
            Member::Inner(items.collect(), params(list.params))
        }
    };
    Some(list.into_iter().map(member).collect())
}

proptest! {
    #[test]
    fn any_text_is_read_as_another_parser_does(field in "[ -~\t]{0,40}") {
        prop_assert_eq!(parse_list(&field), other(&field));
    }

    #[test]
    fn nearly_right_text_is_read_as_another_parser_does(
        parts in prop::collection::vec(
            prop::sample::select(vec![
                "a", "*t/1", "\"x\"", "\"\\\"\"", "\"", "1", "-12", "3.25", "999999999999999", "0.1234", ":aGk=:", ":aGk:",
                ":a:", "?0", "?1", "?", "@5", "@-5", "%\"%c3%bc\"", "%\"a\"", "(", ")", "(1 2)", ";", ";a", ";b=1", ";B", "=",
                ",", ", ", " ", "\t", "\\", "é",
            ]),
            0..12,
        ),
    ) {
        let field = parts.concat();
        prop_assert_eq!(parse_list(&field), other(&field));
    }

    #[test]
    fn a_written_string_is_read_back(text in "[ -~]{0,30}") {
        assert!(is_string(&text));
        let mut written = String::new();
        push_string(&mut written, &text);
        prop_assert_eq!(parse_list(&written), item(Bare::String(text)));
    }

    #[test]
    fn a_written_byte_sequence_is_read_back(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
        let mut written = String::new();
        push_byte_sequence(&mut written, &bytes);
        prop_assert_eq!(parse_list(&written), item(Bare::Bytes(bytes)));
    }
}

/// Reads the vectors of the working group. Each file is a list of cases. An item is read as a list
/// with one member.
#[test]
#[ignore = "reads the directory STRUCTURED_FIELD_TESTS: a copy of github.com/httpwg/structured-field-tests"]
fn vectors_of_the_working_group_are_read() {
    let directory = std::env::var("STRUCTURED_FIELD_TESTS").expect("a directory");
    let mut cases = 0;
    for file in std::fs::read_dir(directory).expect("a directory").flatten() {
        let text = std::fs::read_to_string(file.path()).unwrap_or_default();
        let Ok(serde_json::Value::Array(vectors)) = serde_json::from_str(&text) else { continue };
        for vector in vectors {
            let kind = vector["header_type"].as_str().unwrap_or_default();
            let raw: Vec<&str> =
                vector["raw"].as_array().into_iter().flatten().filter_map(|r| r.as_str()).collect();
            let read =
                parse_list(&raw.join(", ")).map(|members| members.iter().map(json).collect::<Vec<_>>());
            let expected = match kind {
                "list" => vector["expected"].as_array().cloned(),
                "item" => vector.get("expected").filter(|e| !e.is_null()).map(|item| vec![item.clone()]),
                _ => continue,
            };
            // Text that is not an item may be a list, and a list may end in a tab.
            let is_list = read.as_ref().is_some_and(|r| r.len() != 1) || raw.concat().ends_with(['\t', ' ']);
            let no_item = kind == "item" && expected.is_none() && is_list;
            let may_fail = vector["can_fail"] == true && read.is_none();
            assert!(read == expected || no_item || may_fail, "{vector}: {read:?}");
            cases += 1;
        }
    }
    assert!(cases > 500, "{cases} cases");
}

/// A member in the notation of the vectors.
fn json(member: &Member) -> serde_json::Value {
    let typed = |kind: &str, value: serde_json::Value| serde_json::json!({ "__type": kind, "value": value });
    let bare = |bare: &Bare| match bare {
        Bare::Integer(n) => (*n).into(),
        #[expect(clippy::cast_precision_loss)]
        Bare::Decimal(n) => (*n as f64 / 1000.0).into(),
        Bare::String(s) => s.as_str().into(),
        Bare::Token(s) => typed("token", s.as_str().into()),
        Bare::Bytes(bytes) => typed("binary", base32(bytes).into()),
        Bare::Boolean(b) => (*b).into(),
        Bare::Date(n) => typed("date", (*n).into()),
        Bare::Display(s) => typed("displaystring", s.as_str().into()),
    };
    let params = |p: &Params| p.iter().map(|(k, v)| serde_json::json!([k, bare(v)])).collect::<Vec<_>>();
    match member {
        Member::Item(value, p) => serde_json::json!([bare(value), params(p)]),
        Member::Inner(items, p) => {
            let items: Vec<_> = items.iter().map(|(v, p)| serde_json::json!([bare(v), params(p)])).collect();
            serde_json::json!([items, params(p)])
        }
    }
}

fn base32(bytes: &[u8]) -> String {
    let mut out = String::new();
    for chunk in bytes.chunks(5) {
        let bits = chunk.iter().chain(&[0; 5]).take(5).fold(0_u64, |bits, b| bits << 8 | u64::from(*b));
        for i in 0..8 {
            let letter =
                b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"[usize::try_from(bits >> (35 - 5 * i) & 31).unwrap_or(0)];
            out.push(if i < (chunk.len() * 8).div_ceil(5) { char::from(letter) } else { '=' });
        }
    }
    out
}
