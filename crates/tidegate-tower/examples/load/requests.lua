-- The requests that wrk sends, and the responses that it counts. Each connection sends a request,
-- waits for the response, and then waits for 40 ms.

local threads = {}

function setup(thread)
    table.insert(threads, thread)
end

function init()
    granted, refused, others, bare = 0, 0, 0, 0
end

function delay()
    return 40
end

function response(status, headers)
    local all = headers["ratelimit"] and headers["ratelimit-policy"]
    if status == 200 then
        granted = granted + 1
    elseif status == 429 then
        refused = refused + 1
        all = all and headers["retry-after"] and headers["content-type"] == "application/problem+json"
    else
        others = others + 1
    end
    if not all then
        bare = bare + 1
    end
end

function done()
    local sums = {}
    for at, name in ipairs({ "granted", "refused", "others", "bare" }) do
        sums[at] = 0
        for _, thread in ipairs(threads) do
            sums[at] = sums[at] + thread:get(name)
        end
    end
    print(string.format("counted: %d %d %d %d", unpack(sums)))
end
