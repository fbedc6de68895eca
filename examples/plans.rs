//! Plans from a map: each user has the rate of a plan, and an operator changes plans at run time.
//!
//! `cargo run --features keyed --example plans`

use std::collections::HashMap;
use std::sync::{Arc, RwLock};

use tidegate::{KeyedRateLimiter, Plan, Rate, TokenBucket};

/// Data that would be in a database: the plans, and the plan of each user.
#[derive(Default)]
struct Customers {
    plans: HashMap<&'static str, Plan<TokenBucket>>,
    of_users: HashMap<String, &'static str>,
}

impl Customers {
    fn plan(&self, user: &str) -> Option<Plan<TokenBucket>> {
        // A clone of a plan shares its memory.
        self.plans.get(self.of_users.get(user)?).cloned()
    }
}

fn main() {
    let plan = |per_second, burst| Plan::new(TokenBucket::new(Rate::per_second(per_second), burst));
    let mut customers = Customers::default();
    customers.plans.insert("pro", plan(50, 100));
    customers.of_users.insert("ann".into(), "pro");
    let customers = Arc::new(RwLock::new(customers));

    // All other users have the free plan. At most 100,000 users are in memory. Idle users are
    // forgotten, whatever their plan.
    let free = TokenBucket::new(Rate::per_second(2), 5);
    let users: KeyedRateLimiter<String> = KeyedRateLimiter::new(free, 100_000).with_plans({
        let customers = customers.clone();
        move |user: &String| customers.read().expect("no panic").plan(user)
    });
    let granted = |user: &str| (0..1000).take_while(|_| users.try_acquire(user).is_ok()).count();
    println!("ann: {}, bob: {}", granted("ann"), granted("bob"));

    // Bob pays, and gets a better plan.
    {
        let mut customers = customers.write().expect("no panic");
        customers.of_users.insert("bob".into(), "pro");
        customers.plans.insert("pro", plan(1000, 2000));
    }
    let kept = users.replan();
    println!("{kept} users keep their old terms for now");
    println!("carol: {}", granted("carol"));
    for user in ["ann", "bob"] {
        // The permits carry over, and accrue faster.
        let refusal = users.try_acquire_many(user, 2000).expect_err("the bucket is not full");
        println!("{user}: 2000 permits after {:?}", refusal.retry_after());
    }
}
