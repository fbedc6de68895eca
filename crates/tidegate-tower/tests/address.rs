//! The client address of a request, behind honest proxies and with forged headers.

#![allow(clippy::unwrap_used)]

use std::net::{IpAddr, Ipv6Addr};

use http::header::{HeaderName, HeaderValue};
use http::request::Parts;
use http::{Request, StatusCode};
use proptest::prelude::*;
use tidegate_tower::{ClientAddress, ForwardingHeader, Network};

#[derive(Clone, Copy)]
struct Peer(IpAddr);

fn request(peer: &str, headers: &[(&'static str, &str)]) -> Parts {
    let (mut parts, ()) = Request::new(()).into_parts();
    parts.extensions.insert(Peer(peer.parse().unwrap()));
    for (name, value) in headers {
        parts.headers.append(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
    }
    parts
}

fn address() -> ClientAddress {
    ClientAddress::of_peer(|request| request.extensions.get::<Peer>().map(|peer| peer.0))
}

fn trusting() -> ClientAddress {
    address().trust(["10.0.0.0/8", "fd00::/8"]).unwrap()
}

fn client(of: &ClientAddress, peer: &str, headers: &[(&'static str, &str)]) -> String {
    of.client(&request(peer, headers)).unwrap().to_string()
}

const XFF: &str = "x-forwarded-for";

#[test]
fn without_trusted_proxies_no_header_is_read() {
    let made_up = [
        (XFF, "1.1.1.1"),
        ("forwarded", "for=1.1.1.1"),
        ("x-real-ip", "1.1.1.1"),
        ("cf-connecting-ip", "1.1.1.1"),
        ("true-client-ip", "1.1.1.1"),
    ];
    assert_eq!(client(&address(), "10.0.0.1", &made_up), "10.0.0.1");
}

#[test]
fn networks_are_given_as_texts_of_a_file_or_parsed() {
    let texts = vec!["10.0.0.0/8".to_owned()];
    let networks: Vec<Network> = texts.iter().map(|text| text.parse().unwrap()).collect();
    for trusting in [address().trust(&texts).unwrap(), address().trust_networks(networks)] {
        assert_eq!(client(&trusting, "10.0.0.1", &[(XFF, "203.0.113.7")]), "203.0.113.7");
    }
    assert_eq!(address().trust(["10.0.0.0/33".to_owned()]).unwrap_err().text, "10.0.0.0/33");
}

#[test]
fn a_client_past_the_proxies_is_not_believed() {
    assert_eq!(client(&trusting(), "203.0.113.9", &[(XFF, "1.1.1.1")]), "203.0.113.9");
}

#[test]
fn the_right_most_untrusted_address_is_the_client() {
    for told in
        ["203.0.113.7", "1.1.1.1, 203.0.113.7", "1.1.1.1, 203.0.113.7, 10.0.0.2", "junk,\", 203.0.113.7"]
    {
        assert_eq!(client(&trusting(), "10.0.0.1", &[(XFF, told)]), "203.0.113.7", "{told}");
    }
}

#[test]
fn all_lines_of_the_header_count_as_one_list() {
    let lines = [(XFF, "1.1.1.1"), (XFF, "203.0.113.7"), (XFF, "10.0.0.2")];
    assert_eq!(client(&trusting(), "10.0.0.1", &lines), "203.0.113.7");
}

#[test]
fn reading_stops_at_an_entry_that_is_no_address() {
    // The last trusted proxy counts as the client, not the text that a client wrote further left.
    for told in [
        "1.1.1.1, unknown, 10.0.0.2",
        "1.1.1.1, , 10.0.0.2",
        "1.1.1.1, _hidden, 10.0.0.2",
        "1.1.1.1, 10.0.0.256, 10.0.0.2",
    ] {
        assert_eq!(client(&trusting(), "10.0.0.1", &[(XFF, told)]), "10.0.0.2", "{told}");
    }
    assert_eq!(client(&trusting(), "10.0.0.1", &[(XFF, "1.1.1.1, unknown")]), "10.0.0.1");
}

#[test]
fn a_chain_of_trusted_proxies_alone_is_its_first_proxy() {
    assert_eq!(client(&trusting(), "10.0.0.1", &[(XFF, "10.0.0.3, 10.0.0.2")]), "10.0.0.3");
    assert_eq!(client(&trusting(), "10.0.0.1", &[]), "10.0.0.1");
}

#[test]
fn only_the_chosen_header_is_read() {
    let both = [(XFF, "1.1.1.1"), ("forwarded", "for=203.0.113.7")];
    assert_eq!(client(&trusting(), "10.0.0.1", &both), "1.1.1.1");
    let forwarded = trusting().header(ForwardingHeader::Forwarded);
    assert_eq!(client(&forwarded, "10.0.0.1", &both), "203.0.113.7");
    assert_eq!(client(&forwarded, "10.0.0.1", &[(XFF, "1.1.1.1")]), "10.0.0.1");
}

#[test]
fn addresses_have_ports_and_brackets() {
    for (told, expected) in [
        ("203.0.113.7:4711", "203.0.113.7"),
        ("[2001:db8::7]:4711", "2001:db8::7"),
        ("[2001:db8::7]", "2001:db8::7"),
        ("2001:db8::7", "2001:db8::7"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
    ] {
        assert_eq!(client(&trusting(), "10.0.0.1", &[(XFF, told)]), expected, "{told}");
    }
    // A trusted peer, as an IPv4-mapped IPv6 address.
    assert_eq!(client(&trusting(), "::ffff:10.0.0.1", &[(XFF, "203.0.113.7")]), "203.0.113.7");
}

#[test]
fn forwarded_of_rfc_7239_is_read() {
    let of = trusting().header(ForwardingHeader::Forwarded);
    for (told, expected) in [
        ("for=203.0.113.7;proto=http;by=10.0.0.1", "203.0.113.7"),
        ("proto=http; For=\"[2001:db8:cafe::17]:4711\"", "2001:db8:cafe::17"),
        ("for=1.1.1.1, for=203.0.113.7", "203.0.113.7"),
        // Bug: an address with an obfuscated port was no address, so all clients had one key.
        ("for=\"203.0.113.7:_port.1\"", "203.0.113.7"),
        ("for=\"[2001:db8:cafe::17]:_a\"", "2001:db8:cafe::17"),
        ("for=_hidden", "10.0.0.1"),
        ("host=\"a, for=1.1.1.1\";for=203.0.113.7", "203.0.113.7"),
        // A client opened a quote, and a proxy added an element to the right of it.
        ("for=\"1.1.1.1, for=203.0.113.7", "203.0.113.7"),
        ("for=203.0.113.7;for=1.1.1.1", "10.0.0.1"),
        ("for=unknown", "10.0.0.1"),
        ("by=203.0.113.7", "10.0.0.1"),
        ("for=\"", "10.0.0.1"),
    ] {
        assert_eq!(client(&of, "10.0.0.1", &[("forwarded", told)]), expected, "{told}");
    }
}

#[test]
fn a_number_of_proxies_is_trusted_whatever_their_addresses() {
    let told = [(XFF, "1.1.1.1, 203.0.113.7, 198.51.100.2")];
    let hops = |n| client(&address().trust_hops(n), "198.51.100.1", &told);
    assert_eq!(hops(0), "198.51.100.1");
    assert_eq!(hops(1), "198.51.100.2");
    assert_eq!(hops(2), "203.0.113.7");
    // More hops than the header has: the left-most address.
    assert_eq!(hops(9), "1.1.1.1");
}

#[test]
fn a_header_of_one_address_has_one() {
    let of = trusting().header(ForwardingHeader::Single(HeaderName::from_static("x-real-ip")));
    assert_eq!(client(&of, "10.0.0.1", &[("x-real-ip", "203.0.113.7")]), "203.0.113.7");
    assert_eq!(
        client(&of, "10.0.0.1", &[("x-real-ip", "1.1.1.1"), ("x-real-ip", "203.0.113.7")]),
        "10.0.0.1"
    );
    assert_eq!(client(&of, "10.0.0.1", &[("x-real-ip", "1.1.1.1, 203.0.113.7")]), "10.0.0.1");
    assert_eq!(client(&of, "203.0.113.9", &[("x-real-ip", "1.1.1.1")]), "203.0.113.9");
}

#[test]
fn a_byte_that_is_no_text_voids_no_element_of_a_proxy() {
    let forwarded = trusting().header(ForwardingHeader::Forwarded);
    for (of, name, told, expected) in [
        (&trusting(), XFF, &b"\xe9, 203.0.113.7"[..], "203.0.113.7"),
        (&trusting(), XFF, b"1.1.1.1\xe9,203.0.113.7, 10.0.0.2", "203.0.113.7"),
        // The element of the proxy itself is not an address.
        (&trusting(), XFF, b"1.1.1.1, 203.0.113.7\xe9", "10.0.0.1"),
        (&forwarded, "forwarded", b"\xe9\", for=203.0.113.7", "203.0.113.7"),
        (&forwarded, "forwarded", b"for=203.0.113.7;host=\"\xe9\"", "203.0.113.7"),
    ] {
        let mut parts = request("10.0.0.1", &[(name, "1.1.1.1")]);
        parts.headers.append(name, HeaderValue::from_bytes(told).unwrap());
        assert_eq!(of.client(&parts).unwrap().to_string(), expected, "{}", told.escape_ascii());
    }
}

#[test]
fn a_quoted_string_of_forwarded_is_one_value() {
    let of = trusting().header(ForwardingHeader::Forwarded);
    for (told, expected) in [
        (r#"for=203.0.113.7;host="a;for=6.6.6.6";proto=http"#, "203.0.113.7"),
        (r#"host="a;for=6.6.6.6;""#, "10.0.0.1"),
        (r#"for=1.2.3.4, for=10.0.0.2;x="a,b;for=6.6.6.6,""#, "1.2.3.4"),
        (r#"for=203.0.113.7;host="a\", for=6.6.6.6""#, "203.0.113.7"),
        (r#"for=203.0.113.7;host="a\\";proto=http"#, "203.0.113.7"),
        (r#"for=203.0.113.7;host="a\\\";for=6.6.6.6""#, "203.0.113.7"),
        (r#"for=203.0.113.7;host="""#, "203.0.113.7"),
        // A client opened a quoted string, or escaped the next character.
        (r#"for=6.6.6.6;x=", for=203.0.113.7;host="a,b""#, "203.0.113.7"),
        (r#"x="\, for=203.0.113.7;host="a,b""#, "203.0.113.7"),
        // Not well-formed.
        (r#"for=203.0.113.7;host="a"#, "10.0.0.1"),
    ] {
        assert_eq!(client(&of, "10.0.0.1", &[("forwarded", told)]), expected, "{told}");
    }
}

#[test]
fn clients_of_one_ipv6_network_have_one_key() {
    let key = |of: ClientAddress, peer| of.key(&request(peer, &[])).unwrap().to_string();
    assert_eq!(key(address(), "2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
    assert_eq!(key(address().ipv6_prefix(56), "2001:db8:1:2ff::6"), "2001:db8:1:200::");
    assert_eq!(key(address().ipv6_prefix(200), "2001:db8::6"), "2001:db8::6");
    assert_eq!(key(address().ipv6_prefix(0), "2001:db8::6"), "::");
    assert_eq!(key(address(), "203.0.113.7"), "203.0.113.7");
}

#[test]
fn an_unknown_peer_is_an_error_and_no_free_pass() {
    let (parts, ()) = Request::new(()).into_parts();
    assert_eq!(address().key(&parts), Err(StatusCode::INTERNAL_SERVER_ERROR));
}

#[test]
fn networks_are_read_or_refused() {
    for (text, shown) in [
        ("10.1.2.3/8", "10.0.0.0/8"),
        ("10.1.2.3", "10.1.2.3/32"),
        ("0.0.0.0/0", "0.0.0.0/0"),
        ("::/0", "::/0"),
        ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
        ("2001:db8::1", "2001:db8::1/128"),
    ] {
        assert_eq!(text.parse::<Network>().unwrap().to_string(), shown);
    }
    for text in [
        "",
        "/",
        "10.0.0.0/",
        "10.0.0.0/33",
        "10.0.0.0/+8",
        "10.0.0.0/-1",
        "10.0.0.0/8/8",
        "::/129",
        "::ffff:10.0.0.0/90",
        "10.0.0/8",
        "localhost",
    ] {
        assert_eq!(text.parse::<Network>().unwrap_err().text, text);
    }
    // Each range has only addresses of its own kind.
    assert!(!"0.0.0.0/0".parse::<Network>().unwrap().contains("2001:db8::1".parse().unwrap()));
    assert!(!"::/0".parse::<Network>().unwrap().contains("10.0.0.1".parse().unwrap()));
}

proptest! {
    /// Whatever a client sends, in the header or as the host that its proxy forwards, the address
    /// that the proxy adds is found.
    #[test]
    fn no_bytes_of_a_client_hide_it_from_its_proxy(
        sent in prop::collection::vec(prop_oneof![32..=126u8, 128..=255u8, Just(b'"'), Just(b'\\'), Just(b',')], 0..40),
        host in prop::collection::vec(prop_oneof![32..=126u8, 128..=255u8, Just(b'"'), Just(b'\\'), Just(b',')], 0..20),
        quoted in any::<bool>(),
    ) {
        let trusting = if quoted { trusting().header(ForwardingHeader::Forwarded) } else { trusting() };
        let mut told = [&sent[..], b", "].concat();
        if quoted {
            told.extend(b"for=\"203.0.113.7:80\";host=\"");
            told.extend(host.iter().flat_map(|byte| match byte {
                b'"' | b'\\' => vec![b'\\', *byte],
                byte => vec![*byte],
            }));
            told.push(b'"');
        } else {
            told.extend(b"203.0.113.7");
        }
        let mut parts = request("10.0.0.1", &[]);
        let name = if quoted { "forwarded" } else { XFF };
        parts.headers.insert(name, HeaderValue::from_bytes(&told).unwrap());
        prop_assert_eq!(trusting.client(&parts).unwrap().to_string(), "203.0.113.7");
    }

    #[test]
    fn a_network_holds_the_addresses_of_its_prefix(bits in any::<u128>(), prefix in 0..=128u8, flipped in 0..128u32) {
        // Not an IPv4-mapped address.
        let bits = bits | 1 << 127;
        let network = Network::new(IpAddr::V6(Ipv6Addr::from_bits(bits)), prefix);
        let other = bits ^ (1 << (127 - flipped));
        prop_assume!(other >> 127 == 1);
        let inside = network.contains(IpAddr::V6(Ipv6Addr::from_bits(other)));
        prop_assert_eq!(inside, flipped >= u32::from(prefix));
    }
}
