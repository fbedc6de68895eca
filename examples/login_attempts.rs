//! A limit of failed logins, by account and by address. Only failures count: a right password gives
//! its permits back. It prints what became of ten logins.
//!
//! A client often has all addresses of an IPv6 network. A real server limits the first 64 bits of
//! such an address.
//!
//! `cargo run --features keyed --example login_attempts`

use std::net::IpAddr;
use std::time::Duration;

use tidegate::{AllRefusal, AllRequest, KeyedAllOf, KeyedRateLimiter, Rate, TokenBucket};

struct Login {
    account: String,
    address: IpAddr,
    password: &'static str,
}

/// Returns whether the password was right, or a refusal without checking it.
async fn log_in(attempts: &KeyedAllOf<Login>, login: &Login) -> Result<bool, AllRefusal> {
    // Takes the permits now, or refuses: with a longer time, the attempt would wait for them.
    let mut attempt = attempts.reserve(login, AllRequest::new().within(Duration::ZERO))?;
    (&mut attempt).await?;
    let is_right = check_password(login).await;
    if is_right {
        attempt.settle_unused();
    }
    // Otherwise the attempt is dropped, and has used its permits.
    Ok(is_right)
}

async fn check_password(login: &Login) -> bool {
    login.password == "correct horse"
}

#[tokio::main]
async fn main() {
    let by_account = KeyedRateLimiter::new(TokenBucket::new(Rate::per_hour(5), 3), 1_000_000);
    let by_address = KeyedRateLimiter::new(TokenBucket::new(Rate::per_hour(50), 5), 1_000_000);
    let attempts = KeyedAllOf::with_key_part("account", &by_account, |login: &Login| &login.account)
        .with_keyed_by("address", &by_address, |login| &login.address);
    let logins =
        [("ann", 1, true), ("ann", 1, true), ("ann", 1, false), ("ann", 1, false), ("ann", 1, false)];
    let more = [("ann", 2, true), ("bob", 1, false), ("cid", 1, false), ("dan", 1, true), ("dan", 2, true)];
    for (account, host, is_right) in logins.into_iter().chain(more) {
        let (account, address) = (account.to_owned(), IpAddr::from([10, 0, 0, host]));
        let login = Login { account, address, password: if is_right { "correct horse" } else { "guess" } };
        match log_in(&attempts, &login).await {
            Ok(is_right) => println!("{} from {address}: the password is right: {is_right}", login.account),
            Err(refusal) => println!("{} from {address}: refused by {refusal}", login.account),
        }
    }
}
