//! The layers of two crates: a module imports only from lower layers.
//!
//! This test reads the sources as text. It finds each path that starts with `crate::`, or with
//! enough `super::` to leave its folder, and checks in which layer the path ends.

use std::fs;
use std::path::{Path, PathBuf};

/// The modules of a crate, from the lowest layer up. Modules of one layer do not import each other.
type Layers = &'static [&'static [&'static str]];

const TIDEGATE: Layers = &[
    &["sync", "time", "rate", "request"],
    &["error", "grant"],
    &["policy", "clock", "cancel"],
    &["status", "line"],
    &["limiter"],
    &["counting"],
    &["keyed"],
    &["all_of"],
    &["any_limiter"],
    &["stream", "io"],
];

const TIDEGATE_REDIS: Layers = &[
    &["error", "jitter", "lock", "counted", "guarded", "block_on", "methods"],
    &["terms", "breaker", "queue", "observe", "pending"],
    &["key", "script"],
    &["clients", "held", "known_pause", "late", "share", "model"],
    &["connection"],
    &["store"],
    &["set", "counting"],
    &["lease"],
    &["line"],
    &["limiter"],
    &["config", "simulation"],
];

#[test]
fn no_module_imports_upwards() {
    for (src, layers) in [("src", TIDEGATE), ("crates/tidegate-redis/src", TIDEGATE_REDIS)] {
        let home = Path::new(env!("CARGO_MANIFEST_DIR"));
        // A published package has no other crates next to it.
        if src != "src" && !home.join("crates").exists() {
            continue;
        }
        let src = home.join(src);
        let read = |path: &Path| fs::read_to_string(path).expect("readable");
        let root = Root::of(&read(&src.join("lib.rs")), layers);
        let mut wrong = Vec::new();
        for path in sources(&src) {
            let inner = path.strip_prefix(&src).expect("inside");
            if inner != Path::new("lib.rs") {
                wrong.extend(root.upwards(&inner.to_string_lossy().replace('\\', "/"), &read(&path)));
            }
        }
        assert!(wrong.is_empty(), "imports of {} that run upwards:\n{}", src.display(), wrong.join("\n"));
    }
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let mut found: Vec<_> = entries
        .flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] })
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .collect();
    found.sort();
    found
}

/// The names that `lib.rs` exports, each with its module, and the layers of the modules.
struct Root(Vec<(String, String)>, Layers);

impl Root {
    fn of(lib: &str, layers: Layers) -> Root {
        let tokens = tokens(lib);
        let mut names = Vec::new();
        for at in 0..tokens.len() {
            if tokens[at] == "pub" && tokens.get(at + 1).is_some_and(|token| token == "use") {
                let module = &tokens[at + 2];
                let end = tokens[at..].iter().position(|token| token == ";").expect("an end") + at;
                names.extend(tokens[at + 3..end].iter().map(|name| (name.clone(), module.clone())));
            }
        }
        Root(names, layers)
    }

    /// Returns the module that a name comes from; the name may be a module itself.
    fn module<'a>(&'a self, name: &'a str) -> &'a str {
        self.0.iter().find(|(export, _)| export == name).map_or(name, |(_, module)| module)
    }

    /// Returns the imports of a file that do not point to a lower layer.
    fn upwards(&self, file: &str, source: &str) -> Vec<String> {
        let own = file.split('/').next().unwrap_or(file).trim_end_matches(".rs");
        let Some(layer) = self.layer_of(own) else { return vec![format!("{file}: it is in no layer")] };
        let wrong = |name: &&String| match self.module(name) {
            module if module == own => false,
            // A glob imports everything.
            "*" => true,
            module => self.layer_of(module).is_some_and(|other| other >= layer),
        };
        let names = first_names(&tokens(source), depth(file));
        names.iter().filter(wrong).map(|name| format!("{file}: {name}")).collect()
    }

    fn layer_of(&self, module: &str) -> Option<usize> {
        self.1.iter().position(|layer| layer.contains(&module))
    }
}

/// Returns how many `super` lead from a file to the root of the crate.
fn depth(file: &str) -> usize {
    let folders = file.matches('/').count();
    if file.ends_with("mod.rs") { folders } else { folders + 1 }
}

/// Returns the names that follow the root of the crate in all paths, `{..}` included.
fn first_names(tokens: &[String], depth: usize) -> Vec<String> {
    let is = |at: usize, token: &str| tokens.get(at).is_some_and(|found| found == token);
    let (mut names, mut at) = (Vec::new(), 0);
    while at < tokens.len() {
        let begin = at;
        at += 1;
        if is(begin, "super") {
            let mut supers = 1;
            while is(at, "::") && is(at + 1, "super") {
                (supers, at) = (supers + 1, at + 2);
            }
            // One `super` more than the depth is a module inside the file. It may mean the file
            // itself, so a glob shows nothing.
            if supers < depth || is(at + 1, "*") {
                continue;
            }
        } else if !is(begin, "crate") {
            continue;
        }
        if !is(at, "::") {
            continue;
        }
        at += 1;
        if !is(at, "{") {
            names.extend(tokens.get(at).cloned());
            continue;
        }
        let (mut braces, mut first) = (0, true);
        while let Some(token) = tokens.get(at) {
            match token.as_str() {
                "{" => braces += 1,
                "}" => braces -= 1,
                "," => first = braces == 1,
                _ if first => {
                    names.push(token.clone());
                    first = false;
                }
                _ => {}
            }
            at += 1;
            if braces == 0 {
                break;
            }
        }
    }
    names
}

/// Returns the words, `::` and single signs of a source, without comments, strings and characters.
fn tokens(source: &str) -> Vec<String> {
    let (mut tokens, mut rest) = (Vec::new(), source);
    while let Some(sign) = rest.chars().next() {
        let word = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
        let skip = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if sign == '"' {
            end_of_text(rest)
        } else if let Some(escaped) = rest.strip_prefix("'\\") {
            escaped.find('\'').map_or(rest.len(), |end| end + 3)
        } else if sign == '\'' && rest.chars().nth(2) == Some('\'') {
            rest.char_indices().nth(3).map_or(rest.len(), |(end, _)| end)
        } else if rest.starts_with("::") {
            tokens.push("::".to_owned());
            2
        } else if word > 0 {
            tokens.push(rest[..word].to_owned());
            word
        } else {
            if !sign.is_whitespace() {
                tokens.push(sign.to_string());
            }
            sign.len_utf8()
        };
        rest = &rest[skip..];
    }
    tokens
}

fn end_of_text(text: &str) -> usize {
    let mut escaped = false;
    let end = text[1..].find(|c| {
        let ends = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        ends
    });
    end.map_or(text.len(), |end| end + 2)
}

fn found(file: &str, source: &str) -> Vec<String> {
    let lib = "mod limiter; pub use limiter::{RateLimiter, Status}; pub use time::Nanos;";
    Root::of(lib, TIDEGATE).upwards(file, source)
}

#[test]
fn an_import_upwards_is_found() {
    for source in [
        "use crate::limiter::shared::Shared;",
        "fn f() { crate::limiter::shared::f(); }",
        "use crate::RateLimiter;",
        "use crate::{time::Nanos, limiter::{self, shared}};",
        "use super::super::limiter::shared;",
        "mod tests { use super::super::super::limiter; }",
        "use crate::*;",
        "use crate::keyed;",
    ] {
        assert_eq!(found("line/serve.rs", source).len(), 1, "{source}");
    }
    assert_eq!(found("time.rs", "use super::line::Line;").len(), 1);
    assert_eq!(found("policy/any.rs", "use crate::clock::Clock;").len(), 1, "of the same layer");
    assert_eq!(found("line/mod.rs", "use super::limiter;").len(), 1);
    assert_eq!(found("new.rs", "").len(), 1, "of no layer");
}

#[test]
fn other_imports_are_not() {
    for source in [
        "use crate::policy::{Policy, limited}; use crate::Nanos;",
        "use super::rule::Rule; use crate::line::sizes::Sizes;",
        "//! See [`RateLimiter`](crate::RateLimiter).\n/* crate::limiter */ fn f() {}",
        r#"fn f() { let (text, sign, life) = ("crate::limiter \" crate::keyed", '"', 'a'); }"#,
        "mod tests { use super::*; } mod more { use super::super::*; }",
        "fn f<'a>(x: &'a str) -> &'a str { x }",
    ] {
        assert!(found("line/serve.rs", source).is_empty(), "{source}");
    }
}
