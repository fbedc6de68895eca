//! Headers as the documentation of the APIs shows them, one line for each API.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use http::StatusCode;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use tidegate_http::read::Reader;
use tidegate_http::{Unit, When};

/// Unix time 1792567680.
const DATE: &str = "Wed, 21 Oct 2026 07:28:00 GMT";

/// The API; its headers; its limits as unit, limit, remaining, reset and window in seconds.
const VENDORS: &[(&str, &str, &str)] = &[
    (
        "GitHub",
        "x-ratelimit-limit: 30 | x-ratelimit-remaining: 14 | x-ratelimit-reset: 1792567700 | x-ratelimit-used: 16 | \
         x-ratelimit-resource: search",
        "requests 30 14 20 -",
    ),
    (
        "GitHub GraphQL",
        "x-ratelimit-limit: 5000 | x-ratelimit-remaining: 4999 | x-ratelimit-reset: 1792567700 | \
         x-ratelimit-resource: graphql",
        "points 5000 4999 20 -",
    ),
    (
        "GitLab",
        "RateLimit-Limit: 60 | RateLimit-Name: throttle | RateLimit-Observed: 67 | RateLimit-Remaining: 0 | \
         RateLimit-Reset: 1792567700 | RateLimit-ResetTime: Wed, 21 Oct 2026 07:28:20 GMT",
        "requests 60 0 20 -",
    ),
    (
        "Discord",
        "X-RateLimit-Limit: 10 | X-RateLimit-Remaining: 0 | X-RateLimit-Reset: 1792567744.57 | \
         X-RateLimit-Reset-After: 64.57 | X-RateLimit-Bucket: abcd1234 | X-RateLimit-Scope: user",
        "requests 10 0 64.57 -",
    ),
    (
        "Reddit",
        "x-ratelimit-remaining: 598.0 | x-ratelimit-used: 2 | x-ratelimit-reset: 299",
        "requests - 598 299 -",
    ),
    (
        "Jira",
        "X-RateLimit-Limit: 100 | X-RateLimit-Remaining: 9 | X-RateLimit-Reset: 2026-10-21T07:30Z | \
         X-RateLimit-NearLimit: true | Beta-RateLimit-Policy: \"global-app-quota\";q=65000;w=3600 | \
         Beta-RateLimit: \"global-app-quota\";r=7;t=12",
        "requests 100 9 120 -, points 65000 7 12 3600",
    ),
    (
        "Riot Games",
        "X-App-Rate-Limit: 100:120,20:1 | X-App-Rate-Limit-Count: 1:120,1:1 | X-Method-Rate-Limit: 2000:60 | \
         X-Method-Rate-Limit-Count: 1:60",
        "requests 100 99 - 120, requests 20 19 - 1, requests 2000 1999 - 60",
    ),
    ("Salesforce", "Sforce-Limit-Info: api-usage=18/5000", "requests 5000 4982 - -"),
    ("Shopify", "X-Shopify-Shop-Api-Call-Limit: 32/40", "requests 40 8 - -"),
    (
        "Meta",
        "X-App-Usage: {\"call_count\":28,\"total_time\":25,\"total_cputime\":24}",
        "- 100 72 - -, - 100 76 - -, - 100 75 - -",
    ),
    (
        "Xero",
        "X-DayLimit-Remaining: 4985 | X-MinLimit-Remaining: 59 | X-AppMinLimit-Remaining: 9999",
        "requests - 4985 - 86400, requests - 59 - 60, requests - 9999 - 60",
    ),
    (
        "BigCommerce",
        "X-Rate-Limit-Requests-Left: 146 | X-Rate-Limit-Requests-Quota: 150 | X-Rate-Limit-Time-Reset-Ms: 15000 | \
         X-Rate-Limit-Time-Window-Ms: 30000",
        "requests 150 146 15 30",
    ),
    (
        "Trello",
        "x-rate-limit-api-key-interval-ms: 300000 | x-rate-limit-api-key-max: 300 | \
         x-rate-limit-api-key-remaining: 299 | x-rate-limit-api-token-interval-ms: 10000 | \
         x-rate-limit-api-token-max: 100 | x-rate-limit-api-token-remaining: 99",
        "requests 300 299 - 300, requests 100 99 - 10",
    ),
    (
        "Imgur",
        "X-RateLimit-UserLimit: 500 | X-RateLimit-UserRemaining: 499 | X-RateLimit-UserReset: 1792571280 | \
         X-RateLimit-ClientLimit: 12500 | X-RateLimit-ClientRemaining: 12499 | X-Post-Rate-Limit-Limit: 1250 | \
         X-Post-Rate-Limit-Remaining: 1249 | X-Post-Rate-Limit-Reset: 3600",
        "requests 500 499 3600 -, requests 12500 12499 - -, requests 1250 1249 3600 -",
    ),
    (
        "Sentry",
        "x-sentry-rate-limit-limit: 40 | x-sentry-rate-limit-remaining: 39 | x-sentry-rate-limit-reset: 1792567681 | \
         x-sentry-rate-limit-concurrentlimit: 25 | x-sentry-rate-limit-concurrentremaining: 24",
        "requests 40 39 1 -, concurrent-requests 25 24 - -",
    ),
    (
        "Contentful",
        "X-Contentful-RateLimit-Hour-Limit: 36000 | X-Contentful-RateLimit-Hour-Remaining: 35883 | \
         X-Contentful-RateLimit-Second-Limit: 10 | X-Contentful-RateLimit-Second-Remaining: 9 | \
         X-Contentful-RateLimit-Reset: 0",
        "requests 36000 35883 0 3600, requests 10 9 0 1",
    ),
    (
        "Kong",
        "X-RateLimit-Limit-Second: 5 | X-RateLimit-Remaining-Second: 4 | X-RateLimit-Limit-Minute: 10 | \
         X-RateLimit-Remaining-Minute: 9 | RateLimit-Limit: 5 | RateLimit-Remaining: 4 | RateLimit-Reset: 1",
        "requests 5 4 1 1, requests 10 9 - 60",
    ),
    (
        "Klaviyo",
        "RateLimit-Limit: 3, 3;w=1, 60;w=60 | RateLimit-Remaining: 2 | RateLimit-Reset: 1",
        "requests 3 2 1 1, requests 60 - - 60",
    ),
    (
        "Docker Hub",
        "RateLimit-Limit: 100;w=21600 | RateLimit-Remaining: 99;w=21600 | docker-ratelimit-source: 192.0.2.1",
        "requests 100 99 - 21600",
    ),
    (
        "Hugging Face",
        "RateLimit: \"api\";r=489;t=243 | RateLimit-Policy: \"fixed window\";\"api\";q=500;w=300",
        "requests 500 489 243 300",
    ),
    (
        "Cloudflare",
        "Ratelimit: \"default\";r=50;t=30 | Ratelimit-Policy: \"default\";q=100;w=60",
        "requests 100 50 30 60",
    ),
    ("Close", "RateLimit: limit=100, remaining=50, reset=5", "requests 100 50 5 -"),
    (
        "OpenAI",
        "x-ratelimit-limit-tokens_usage_based: 40000 | x-ratelimit-remaining-tokens_usage_based: 39000 | \
         x-ratelimit-reset-tokens_usage_based: 1m30s | x-ratelimit-limit-project-requests: 4000 | \
         x-ratelimit-remaining-project-requests: 3999 | x-ratelimit-reset-project-requests: 15ms",
        "tokens 40000 39000 90 -, requests 4000 3999 0.015 -",
    ),
    (
        "Cerebras",
        "x-ratelimit-limit-requests-day: 14400 | x-ratelimit-limit-tokens-minute: 60000 | \
         x-ratelimit-remaining-requests-day: 14399 | x-ratelimit-remaining-tokens-minute: 59000 | \
         x-ratelimit-reset-requests-day: 33011.5 | x-ratelimit-reset-tokens-minute: 11.25",
        "requests 14400 14399 33011.5 86400, tokens 60000 59000 11.25 60",
    ),
    (
        "Anthropic",
        "anthropic-ratelimit-requests-limit: 50 | anthropic-ratelimit-requests-remaining: 49 | \
         anthropic-ratelimit-requests-reset: 2026-10-21T07:28:01Z | anthropic-priority-input-tokens-limit: 10000 | \
         anthropic-priority-input-tokens-remaining: 9618 | anthropic-priority-input-tokens-reset: 2026-10-21T07:29:17Z",
        "requests 50 49 1 -, tokens 10000 9618 77 -",
    ),
    (
        "Together",
        "x-ratelimit-limit: 10 | x-ratelimit-remaining: 9 | x-ratelimit-reset: 0.5 | x-tokenlimit-limit: 100000 | \
         x-tokenlimit-remaining: 99950",
        "requests 10 9 0.5 -, tokens 100000 99950 - -",
    ),
    (
        "Mistral, before",
        "ratelimitbysize-limit: 2000000 | ratelimitbysize-remaining: 1999995 | ratelimitbysize-reset: 25 | \
         ratelimitbysize-query-cost: 5 | x-ratelimitbysize-limit-minute: 2000000 | \
         x-ratelimitbysize-remaining-minute: 1999995 | x-ratelimitbysize-limit-month: 10000000000 | \
         x-ratelimitbysize-remaining-month: 9999999995",
        "tokens 2000000 1999995 25 60, tokens 10000000000 9999999995 - -",
    ),
    (
        "OpenRouter",
        "X-RateLimit-Limit: 50 | X-RateLimit-Remaining: 1 | X-RateLimit-Reset: 1792627200000",
        "requests 50 1 59520 -",
    ),
    (
        "Kong AI",
        "X-AI-RateLimit-Limit-30-azure: 2000 | X-AI-RateLimit-Remaining-30-azure: 1900 | X-AI-RateLimit-Reset-30-azure: 10",
        "tokens 2000 1900 10 -",
    ),
    ("Azure Resource Manager", "x-ms-ratelimit-remaining-subscription-reads: 11999", "requests - 11999 - -"),
    (
        "Azure Compute",
        "x-ms-ratelimit-remaining-resource: Microsoft.Compute/HighCostGet3Min;107,Microsoft.Compute/HighCostGet30Min;1278",
        "requests - 107 - -, requests - 1278 - -",
    ),
    (
        "Dynamics 365",
        "x-ms-ratelimit-burst-remaining-xrm-requests: 5999 | x-ms-ratelimit-time-remaining-xrm-requests: 1,199.75",
        "requests - 5999 - -, - - 1199.75 - -",
    ),
    (
        "RapidAPI",
        "X-RateLimit-Requests-Limit: 500 | X-RateLimit-Requests-Remaining: 499 | X-RateLimit-Requests-Reset: 2591999 | \
         x-ratelimit-rapid-free-plans-hard-limit-limit: 500000 | \
         x-ratelimit-rapid-free-plans-hard-limit-remaining: 499999 | \
         x-ratelimit-rapid-free-plans-hard-limit-reset: 2591999",
        "requests 500 499 2591999 -, requests 500000 499999 2591999 -",
    ),
    (
        "Etsy",
        "x-limit-per-second: 10 | x-remaining-this-second: 9 | x-limit-per-day: 10000 | x-remaining-today: 9999",
        "requests 10 9 - 1, requests 10000 9999 - 86400",
    ),
    (
        "Yelp",
        "RateLimit-DailyLimit: 5000 | RateLimit-Remaining: 4999 | RateLimit-ResetTime: 2026-10-22T00:00:00+00:00",
        "requests 5000 4999 59520 86400",
    ),
    (
        "Vimeo",
        "X-RateLimit-Limit: 1000 | X-RateLimit-Remaining: 999 | X-RateLimit-Reset: 2026-10-21T07:29:00+00:00",
        "requests 1000 999 60 -",
    ),
    (
        "Akamai",
        "X-RateLimit-Limit: 60 | X-RateLimit-Remaining: 0 | X-RateLimit-Next: 2026-10-21T07:28:30.500Z",
        "requests 60 0 30.5 -",
    ),
    (
        "lemlist",
        "X-RateLimit-Limit: 20 | X-RateLimit-Remaining: 19 | \
         X-RateLimit-Reset: Wed Oct 21 2026 07:28:02 GMT+0000 (Coordinated Universal Time)",
        "requests 20 19 2 -",
    ),
    (
        "Ticketmaster",
        "Rate-Limit: 5000 | Rate-Limit-Available: 4999 | Rate-Limit-Over: 0 | Rate-Limit-Reset: 1792654080000",
        "requests 5000 4999 86400 -",
    ),
    (
        "Bybit",
        "X-Bapi-Limit: 100 | X-Bapi-Limit-Status: 99 | X-Bapi-Limit-Reset-Timestamp: 1792567681000",
        "requests 100 99 1 -",
    ),
    (
        "Gate",
        "X-Gate-RateLimit-Requests-Remain: 9 | X-Gate-RateLimit-Limit: 10 | X-Gate-RateLimit-Reset-Timestamp: 1792567681",
        "requests 10 9 1 -",
    ),
    (
        "HTX",
        "X-HB-RateLimit-Requests-Remain: 9 | X-HB-RateLimit-Requests-Expire: 1792567681000",
        "requests - 9 1 -",
    ),
    (
        "BitMEX",
        "x-ratelimit-limit: 120 | x-ratelimit-remaining: 119 | x-ratelimit-reset: 1792567681 | x-ratelimit-remaining-1s: 9",
        "requests 120 119 1 -, requests - 9 - 1",
    ),
    (
        "Rollbar",
        "X-Rate-Limit-Limit: 5000 | X-Rate-Limit-Remaining: 4999 | X-Rate-Limit-Reset: 1792567740 | \
         X-Rate-Limit-Remaining-Seconds: 60",
        "requests 5000 4999 60 -",
    ),
    (
        "Discogs",
        "X-Discogs-Ratelimit: 60 | X-Discogs-Ratelimit-Used: 1 | X-Discogs-Ratelimit-Remaining: 59",
        "requests 60 59 - -",
    ),
    (
        "Freshdesk",
        "X-RateLimit-Total: 3000 | X-RateLimit-Remaining: 2999 | X-RateLimit-Used-CurrentRequest: 1",
        "requests 3000 2999 - -",
    ),
    (
        "Zendesk",
        "ratelimit-limit: 700 | ratelimit-remaining: 699 | ratelimit-reset: 43 | \
         Zendesk-RateLimit-Tickets-Index: total=100; remaining=99; resets=50",
        "requests 700 699 43 -, requests 100 99 50 -",
    ),
    (
        "Mapbox",
        "X-Rate-Limit-Interval: 60 | X-Rate-Limit-Limit: 600 | X-Rate-Limit-Reset: 1792567740",
        "requests 600 - 60 60",
    ),
    (
        "Crossref",
        "X-Rate-Limit-Limit: 50 | X-Rate-Limit-Interval: 1s | X-Concurrency-Limit: 3",
        "requests 50 - - 1, concurrent-requests 3 - - -",
    ),
    (
        "RingCentral",
        "X-Rate-Limit-Group: light | X-Rate-Limit-Limit: 100 | X-Rate-Limit-Remaining: 99 | X-Rate-Limit-Window: 60",
        "requests 100 99 - 60",
    ),
    (
        "urlscan",
        "X-Rate-Limit-Action: search | X-Rate-Limit-Window: minute | X-Rate-Limit-Limit: 30 | \
         X-Rate-Limit-Remaining: 24 | X-Rate-Limit-Reset: 2026-10-21T07:28:30.000Z | X-Rate-Limit-Reset-After: 30",
        "requests 30 24 30 60",
    ),
    (
        "Ensembl",
        "X-RateLimit-Limit: 55000 | X-RateLimit-Reset: 892 | X-RateLimit-Period: 3600 | X-RateLimit-Remaining: 54999",
        "requests 55000 54999 892 3600",
    ),
    (
        "Jira Data Center",
        "X-RateLimit-Limit: 100 | X-RateLimit-Remaining: 99 | X-RateLimit-Interval-Seconds: 5 | X-RateLimit-FillRate: 5",
        "requests 100 99 - 5",
    ),
    (
        "Strava",
        "X-RateLimit-Limit: 200,2000 | X-RateLimit-Usage: 1,10 | X-ReadRateLimit-Limit: 100,1000 | X-ReadRateLimit-Usage: 1,11",
        "requests 200 199 - -, requests 2000 1990 - -, requests 100 99 - -, requests 1000 989 - -",
    ),
    (
        "Linear",
        "X-RateLimit-Requests-Limit: 1500 | X-RateLimit-Requests-Remaining: 1499 | \
         X-RateLimit-Requests-Reset: 1792571280000 | X-Complexity: 30 | X-RateLimit-Complexity-Limit: 250000 | \
         X-RateLimit-Complexity-Remaining: 249970 | X-RateLimit-Complexity-Reset: 1792571280000",
        "requests 1500 1499 3600 -, points 250000 249970 3600 -",
    ),
    ("Toggl", "X-Toggl-Quota-Remaining: 29 | X-Toggl-Quota-Resets-In: 3600", "requests - 29 3600 -"),
    (
        "The Odds API",
        "x-requests-remaining: 499 | x-requests-used: 1 | x-requests-last: 1",
        "requests - 499 - -",
    ),
    ("Walmart", "X-Current-Token-Count: 9 | X-Next-Replenishment-Time: 1792567681000", "requests - 9 1 -"),
    (
        "LaunchDarkly",
        "X-Ratelimit-Global-Remaining: 99 | X-Ratelimit-Reset: 1792567681000 | X-Ratelimit-Route-Limit: 10 | \
         X-Ratelimit-Route-Remaining: 9",
        "requests - 99 1 -, requests 10 9 1 -",
    ),
    (
        "Flask-Limiter",
        "X-RateLimit-Limit: 1 per 5 second | X-RateLimit-Remaining: 0 | X-RateLimit-Reset: 1792567685",
        "requests 1 0 5 5",
    ),
    (
        "NestJS",
        "X-RateLimit-Limit-short: 3 | X-RateLimit-Remaining-short: 2 | X-RateLimit-Reset-short: 1",
        "requests 3 2 1 -",
    ),
    (
        "Cohere",
        "x-trial-endpoint-call-limit: 40 | x-trial-endpoint-call-remaining: 39 | x-endpoint-monthly-call-limit: 1000",
        "requests 40 39 - -, requests 1000 - - -",
    ),
    (
        "Pipedrive",
        "x-ratelimit-limit: 80 | x-ratelimit-remaining: 79 | x-ratelimit-reset: 2 | X-Daily-Requests-Left: 9999",
        "requests 80 79 2 -, requests - 9999 - 86400",
    ),
    (
        "Fastly",
        "Fastly-RateLimit-Remaining: 998 | Fastly-RateLimit-Reset: 1792569600",
        "requests - 998 1920 -",
    ),
    (
        "Pingdom",
        "Req-Limit-Short: Remaining: 394 Time until reset: 3589 | Req-Limit-Long: Remaining: 71994 Time until reset: 2591989",
        "requests - 394 3589 -, requests - 71994 2591989 -",
    ),
    (
        "Lightspeed eCom",
        "X-RateLimit-Limit: 300/3000/12000 | X-RateLimit-Remaining: 296/2990/11990 | X-RateLimit-Reset: 270/1530/2000",
        "requests 300 296 270 -, requests 3000 2990 1530 -, requests 12000 11990 2000 -",
    ),
    ("Lightspeed Retail", "X-LS-API-Bucket-Level: 50/180 | X-LS-API-Drip-Rate: 3", "requests 180 130 - -"),
    ("Recharge", "X-Recharge-Limit: 1/40", "requests 40 39 - -"),
    ("Gorgias", "X-Gorgias-Account-Api-Call-Limit: 1/40", "requests 40 39 - -"),
    (
        "Amazon MWS",
        "x-mws-quota-max: 3600.0 | x-mws-quota-remaining: 10.0 | x-mws-quota-resetsOn: 2026-10-21T07:29:00.000Z",
        "requests 3600 10 60 -",
    ),
    (
        "7digital",
        "x-ratelimit-current: 24 | x-ratelimit-limit: 4000 | x-ratelimit-reset: 18953",
        "requests 4000 3976 18953 -",
    ),
    (
        "KuCoin",
        "gw-ratelimit-limit: 2000 | gw-ratelimit-remaining: 1990 | gw-ratelimit-reset: 29990",
        "requests 2000 1990 29.99 -",
    ),
    ("Lark", "x-ogw-ratelimit-limit: 100 | x-ogw-ratelimit-reset: 60", "requests 100 - 60 -"),
    (
        "ElevenLabs",
        "current-concurrent-requests: 1 | maximum-concurrent-requests: 4",
        "concurrent-requests 4 3 - -",
    ),
    (
        "Salesforce, an app",
        "Sforce-Limit-Info: api-usage=18/5000; per-app-api-usage=17/250(appName=sample)",
        "requests 5000 4982 - -, requests 250 233 - -",
    ),
    (
        "Groq, audio",
        "x-ratelimit-limit-audio-seconds: 7200 | x-ratelimit-remaining-audio-seconds: 7000 | x-ratelimit-reset-audio-seconds: 1m40s",
        "- 7200 7000 100 -",
    ),
    (
        "Pinterest",
        "x-ratelimit-limit: 100, 100;w=1;name=\"a,b\", 1000;w=60;name=\"c\" | x-ratelimit-remaining: 99 | x-ratelimit-reset: 1",
        "requests 100 99 1 1, requests 1000 - - 60",
    ),
    (
        "WHOOP",
        "X-RateLimit-Limit: 100, 100;window=60, 10000;window=86400 | X-RateLimit-Remaining: 98 | X-RateLimit-Reset: 3",
        "requests 100 98 3 60, requests 10000 - - 86400",
    ),
    (
        "Fitbit",
        "Fitbit-Rate-Limit-Limit: 150 | Fitbit-Rate-Limit-Remaining: 149 | Fitbit-Rate-Limit-Reset: 1478",
        "requests 150 149 1478 -",
    ),
    (
        "Gusto",
        "X-RateLimit-Limit: 200 | X-RateLimit-Remaining: 198 | X-RateLimit-Reset: 2026-10-21 00:29:00 -0700",
        "requests 200 198 60 -",
    ),
    (
        "GoCardless",
        "RateLimit-Limit: 1000 | RateLimit-Remaining: 163 | RateLimit-Reset: Wed, 21 Oct 2026 07:29:00 GMT",
        "requests 1000 163 60 -",
    ),
    (
        "Front",
        "x-ratelimit-limit: 50 | x-ratelimit-remaining: 0 | x-ratelimit-reset: 1792567681.25 | \
         x-ratelimit-burst-limit: 25 | x-ratelimit-burst-remaining: 22",
        "requests 50 0 1.25 -, requests 25 22 - -",
    ),
    (
        "Apollo",
        "x-rate-limit-24-hour: 2000 | x-24-hour-usage: 1990 | x-24-hour-requests-left: 10 | x-rate-limit-minute: 200 | \
         x-minute-usage: 1 | x-minute-requests-left: 199",
        "requests 2000 10 - 86400, requests 200 199 - 60",
    ),
    (
        "AspNetCoreRateLimit",
        "X-Rate-Limit-Limit: 1m | X-Rate-Limit-Remaining: 299 | X-Rate-Limit-Reset: 2026-10-21T07:28:23.7468234Z",
        "requests - 299 23.7468234 60",
    ),
    (
        "Azure Resource Graph",
        "x-ms-user-quota-remaining: 10 | x-ms-user-quota-resets-after: 00:00:03",
        "requests - 10 3 -",
    ),
    ("Beds24", "X-Five-Min-Limit-Remaining: 98.5 | X-Five-Min-Limit-Resets-In: 298", "points - 98.5 298 300"),
    (
        "HighLevel",
        "x-ratelimit-max: 100 | x-ratelimit-remaining: 99 | x-ratelimit-interval-milliseconds: 10000 | \
         x-ratelimit-limit-daily: 200000 | x-ratelimit-daily-remaining: 199779 | x-ratelimit-daily-reset: 49013000",
        "requests 100 99 - 10, requests 200000 199779 49013 86400",
    ),
    (
        "an interval beside a reset in milliseconds",
        "x-rate-limit-interval: 1000 | x-rate-limit-limit: 25 | x-rate-limit-remaining: 24 | x-rate-limit-reset: 1792567680156",
        "requests 25 24 0.156 1",
    ),
    (
        "Otoroshi",
        "Otoroshi-Daily-Calls-Remaining: 9999998 | Otoroshi-Monthly-Calls-Remaining: 9999999",
        "requests - 9999998 - 86400, requests - 9999999 - -",
    ),
    (
        "two quotas",
        "x-quota-limit: 200 | x-quota-remaining: 191 | x-quota-reset: 1792567740000 | x-rate-limit-limit: 5 | \
         x-rate-limit-remaining: 4 | x-rate-limit-reset: 1792567681000",
        "requests 200 191 60 -, requests 5 4 1 -",
    ),
    ("WeatherAPI", "x-weatherapi-qpm-left: 999999", "requests - 999999 - 60"),
    ("credits", "X-Credits-Remaining: 41672 | X-Credits-Used: 208", "points - 41672 - -"),
    (
        "Brave Search",
        "X-RateLimit-Limit: 1, 15000 | X-RateLimit-Policy: 1;w=1, 15000;w=2592000 | X-RateLimit-Remaining: 1, 1000 | \
         X-RateLimit-Reset: 1, 1419704",
        "requests 1 1 1 1, requests 15000 1000 1419704 2592000",
    ),
    (
        "X",
        "x-rate-limit-limit: 1200000 | x-rate-limit-remaining: 1199998 | x-rate-limit-reset: 1792568580 | \
         x-user-limit-24hour-limit: 25 | x-user-limit-24hour-remaining: 0 | x-user-limit-24hour-reset: 1792654080 | \
         x-app-limit-24hour-limit: 100 | x-app-limit-24hour-remaining: 7 | x-app-limit-24hour-reset: 1792654081",
        "requests 1200000 1199998 900 -, requests 25 0 86400 86400, requests 100 7 86401 86400",
    ),
    (
        "Unity",
        "Unity-RateLimit: limit=20, remaining=19, reset=1; limit=4000, remaining=3994, reset=1579",
        "requests 20 19 1 -, requests 4000 3994 1579 -",
    ),
    (
        "Basecamp",
        "X-Ratelimit: {\"name\":\"General\",\"period\":60,\"limit\":1000,\"remaining\":999,\
         \"until\":\"2026-10-21T07:28:30Z\"}",
        "requests 1000 999 30 60",
    ),
    ("App Store Connect", "X-Rate-Limit: user-hour-lim:3600;user-hour-rem:0;", "requests 3600 0 - 3600"),
    ("Upbit", "Remaining-Req: group=market; min=600; sec=9", "requests - 9 - 1"),
    (
        "Auth0, a client",
        "Auth0-Client-Quota-Limit: b=per_hour;q=100;r=90;t=3600,b=per_day;q=1000;r=950;t=86400 | \
         Auth0-Organization-Quota-Limit: b=per_hour;q=500;r=0;t=60",
        "requests 100 90 3600 3600, requests 1000 950 86400 86400, requests 500 0 60 3600",
    ),
    (
        "DocuSign",
        "X-RateLimit-Limit: 1000 | X-RateLimit-Remaining: 970 | X-RateLimit-Reset: 1792569600 | \
         X-BurstLimit-Limit: 500 | X-BurstLimit-Remaining: 498",
        "requests 1000 970 1920 -, requests 500 498 - -",
    ),
    (
        "Qualys",
        "X-RateLimit-Limit: 300 | X-RateLimit-Window-Sec: 3600 | X-RateLimit-Remaining: 299 | X-RateLimit-ToWait-Sec: 0 | \
         X-Concurrency-Limit-Limit: 10 | X-Concurrency-Limit-Running: 1",
        "requests 300 299 - 3600, concurrent-requests 10 9 - -",
    ),
    (
        "Kintone",
        "X-ConcurrencyLimit-Limit: 100 | X-ConcurrencyLimit-Running: 1",
        "concurrent-requests 100 99 - -",
    ),
    (
        "Zuora",
        "RateLimit-Limit: 50000;w=60 | RateLimit-Remaining: 49999;w=60 | RateLimit-Reset: 8 | \
         Concurrency-Limit-Limit: 40 | Concurrency-Limit-Remaining: 39 | Concurrency-Limit-Type: Default",
        "requests 50000 49999 8 60, concurrent-requests 40 39 - -",
    ),
    ("EVE", "X-Esi-Error-Limit-Remain: 98 | X-Esi-Error-Limit-Reset: 43", "- - 98 43 -"),
    ("Qiita", "Rate-Limit: 60 | Rate-Remaining: 57 | Rate-Reset: 1792567740", "requests 60 57 60 -"),
    (
        "Qiita, before",
        "X-Rate-Limit: 60 | X-Rate-Remaining: 57 | X-Rate-Reset: 1792567740",
        "requests 60 57 60 -",
    ),
    ("football-data", "X-Requests-Available-Minute: 9 | X-RequestCounter-Reset: 43", "requests - 9 43 60"),
    (
        "Nexus Mods",
        "X-RL-Hourly-Limit: 100 | X-RL-Hourly-Remaining: 99 | X-RL-Hourly-Reset: 2026-10-21T08:00:00+00:00 | \
         X-RL-Daily-Limit: 2500 | X-RL-Daily-Remaining: 2493 | X-RL-Daily-Reset: 2026-10-22 00:00:00 +0000",
        "requests 100 99 1920 3600, requests 2500 2493 59520 86400",
    ),
    ("ip-api", "X-Rl: 44 | X-Ttl: 60", "requests - 44 60 -"),
    ("a lifetime in a cache", "X-Ttl: 60", ""),
    (
        "Affinity",
        "X-Ratelimit-Limit-User: 900 | X-Ratelimit-Limit-User-Remaining: 899 | X-Ratelimit-Limit-User-Reset: 20 | \
         X-Ratelimit-Limit-Org: 100000 | X-Ratelimit-Limit-Org-Remaining: 99000 | X-Ratelimit-Limit-Org-Reset: 2000",
        "requests 900 899 20 -, requests 100000 99000 2000 -",
    ),
    (
        "currencyapi",
        "X-RateLimit-Limit-Quota-Minute: 10 | X-RateLimit-Limit-Quota-Month: 300 | \
         X-RateLimit-Remaining-Quota-Minute: 5 | X-RateLimit-Remaining-Quota-Month: 199",
        "requests 10 5 - 60, requests 300 199 - -",
    ),
    (
        "an interval with a length",
        "X-RateLimit-Limit: 100 | X-RateLimit-Remaining: 99 | X-RateLimit-Interval-Length-Seconds: 60",
        "requests 100 99 - 60",
    ),
    (
        "a period in seconds",
        "X-RateLimit-Limit: 100 | X-RateLimit-Remaining: 99 | X-RateLimit-Period-In-Sec: 60",
        "requests 100 99 - 60",
    ),
    (
        "Sentry, of an event",
        "X-Sentry-Rate-Limits: 60:default;error;security;attachment:organization:error_usage_exceeded, 2700::organization",
        "requests - 0 60 -, requests - 0 2700 -",
    ),
    (
        "Path of Exile",
        "X-Rate-Limit-Policy: backend-item-request-limit | X-Rate-Limit-Rules: Account,Ip | \
         X-Rate-Limit-Account: 3:5:60 | X-Rate-Limit-Account-State: 4:5:60 | \
         X-Rate-Limit-Ip: 8:10:60,15:60:120 | X-Rate-Limit-Ip-State: 7:10:60,15:60:0",
        "requests 3 0 60 5, requests 8 0 60 10, requests 15 0 - 60",
    ),
    (
        "Prisjakt",
        "X-Rate-Limit-Limit: 10000 | X-Rate-Limit-Remaining: 9999 | X-Rate-Limit-Reset: 600000 (in milliseconds)",
        "requests 10000 9999 600 -",
    ),
    (
        "Mashery",
        "X-Plan-QPS-Allotted: 10 | X-Plan-QPS-Current: 1 | X-Plan-Quota-Allotted: 1000 | X-Plan-Quota-Current: 2 | \
         X-Plan-Quota-Reset: Wednesday, October 21, 2026 7:29:00 AM GMT",
        "requests 10 9 - 1, requests 1000 998 60 -",
    ),
    (
        "Mashery, equal counts",
        "X-Packagekey-QPS-Allotted: 5 | X-Packagekey-QPS-Current: 1 | X-Packagekey-Quota-Allotted: 5 | \
         X-Packagekey-Quota-Current: 1",
        "requests 5 4 - 1, requests 5 4 - -",
    ),
    (
        "Zuul",
        "X-RateLimit-Limit-rate-limit-application_x_127.0.0.1: 5 | \
         X-RateLimit-Remaining-rate-limit-application_x_127.0.0.1: 4 | \
         X-RateLimit-Reset-rate-limit-application_x_127.0.0.1: 60000",
        "requests 5 4 60 -",
    ),
    (
        "Trello, the database",
        "x-rate-limit-db-query-time-interval-ms: 600000 | x-rate-limit-db-query-time-max: 7200000 | \
         x-rate-limit-db-query-time-remaining: 7199905",
        "- 7200000 7199905 - 600",
    ),
    (
        "CryptoCompare",
        "X-RateLimit-Limit-All: 1220400, 2;window=1, 40;window=60, 1000;window=3600 | \
         X-RateLimit-Remaining-All: 1220397, 1;window=1, 33;window=60, 990;window=3600 | \
         X-RateLimit-Reset-All: 100, 1;window=1, 30;window=60, 900;window=3600",
        "requests 2 1 1 1, requests 40 33 30 60, requests 1000 990 900 3600",
    ),
    (
        "CryptoCompare without limits",
        "X-RateLimit-Remaining-All: 1220397, 1;window=1, 33;window=60 | \
         X-RateLimit-Reset-All: 100, 30;window=60, 1;window=1",
        "requests - 1 1 1, requests - 33 30 60",
    ),
    (
        "Keap",
        "x-keap-product-quota-limit: 150000 | x-keap-product-quota-time-unit: day | x-keap-product-quota-interval: 1 | \
         x-keap-product-quota-available: 149999 | x-keap-product-throttle-limit: 1500 | \
         x-keap-product-throttle-time-unit: minute | x-keap-product-throttle-interval: 2 | \
         x-keap-product-throttle-available: 1499 | x-keap-tenant-throttle-available: 9 | \
         x-keap-tenant-throttle-interval: 1 | x-keap-tenant-throttle-time-unit: SECOND",
        "requests 150000 149999 - 86400, requests 1500 1499 - 120, requests - 9 - 1",
    ),
    (
        "Unity, with policies",
        "RateLimit-Policy: 20;w=1, 4000;w=1800 | RateLimit: limit=20, remaining=19, reset=1 | \
         Unity-RateLimit: limit=20, remaining=19, reset=1; limit=4000, remaining=3994, reset=1579",
        "requests 20 19 1 1, requests 4000 3994 1579 1800",
    ),
    (
        "Brightpearl",
        "brightpearl-requests-remaining: 194 | brightpearl-next-throttle-period: 56565",
        "requests - 194 56.565 -",
    ),
    ("tollbooth", "X-Rate-Limit-Limit: 10.00 | X-Rate-Limit-Duration: 1", "requests 10 - - 1"),
    ("tollbooth, a duration", "X-Rate-Limit-Limit: 10.00 | X-Rate-Limit-Duration: 1s", "requests 10 - - 1"),
    (
        "an expiry in the past tense",
        "X-Ratelimit-Remaining: 3 | X-Ratelimit-Expired: Wed, 21 Oct 2026 07:29:00 GMT",
        "requests - 3 60 -",
    ),
    ("Huawei", "X-Apig-RateLimit-api: remain:9,limit:10,time:10 second", "requests 10 9 - 10"),
    (
        "a list of strings",
        "X-Ratelimit-Limit: [\"80/5s\",\"720/1m0s\"] | X-Ratelimit-Remaining: [\"79/5s\",\"719/1m0s\"]",
        "requests 80 79 - 5, requests 720 719 - 60",
    ),
    ("calls of a total", "calls-left: 4 | calls-total: 10", "requests 10 4 - -"),
    ("remaining of limit", "X-RateLimit-Remaining: 59/60 | X-RateLimit-Reset: 7", "requests 60 59 7 -"),
    ("a quoted limit", "X-RateLimit-Limit: \"5 per 60s\" | X-RateLimit-Remaining: 2", "requests 5 2 - 60"),
];

fn read(headers: &str) -> String {
    let mut map = HeaderMap::from_iter([(http::header::DATE, HeaderValue::from_static(DATE))]);
    for header in headers.split(" | ") {
        let (name, value) = header.split_once(": ").unwrap();
        map.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_str(value).unwrap());
    }
    let text = |number: Option<f64>| number.map_or("-".to_owned(), |n| n.to_string());
    let seconds = |duration: Duration| duration.as_secs_f64();
    let limits = Reader::auto().read(StatusCode::OK, &map).limits.into_iter().map(|limit| {
        let reset = limit.reset.map(|reset| match reset {
            When::In(wait) => seconds(wait),
            When::At(_) => f64::NAN,
        });
        let unit = limit.unit.map_or("-", Unit::as_str);
        let numbers = [limit.limit, limit.remaining, reset, limit.window.map(seconds)].map(text).join(" ");
        format!("{unit} {numbers}")
    });
    limits.collect::<Vec<_>>().join(", ")
}

#[test]
fn documented_headers_are_read() {
    let wrong = VENDORS.iter().filter(|(_, headers, expected)| read(headers) != *expected);
    let wrong: Vec<_> = wrong.map(|(vendor, headers, _)| format!("{vendor}: {}", read(headers))).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
