-- Fixed window: `limit` permits in each window of time.
--
--   | term | name   | unit    | meaning                                                         |
--   |------|--------|---------|-----------------------------------------------------------------|
--   | 1    | limit  | permits | of one window                                                   |
--   | 2    | length | us      | of the window                                                   |
--   | 3    | offset | us      | of the windows, relative to those of Unix time; -1: a window    |
--   |      |        |         | begins with its first grant                                     |
--
--   | state | name  | unit    | meaning                                                         |
--   |-------|-------|---------|-----------------------------------------------------------------|
--   | 1     | began | us      | when the window of `booked` began                               |
--   | 2     | used  | permits | of that window; at most 2^52                                    |
--
-- A window that begins with its first grant may begin later than the end of the one before, because
-- other limits made the grant wait. If the offset is -1, the windows up to the last gap follow:
--
--   | state | name   | unit   | meaning                                                         |
--   |-------|--------|--------|-----------------------------------------------------------------|
--   | 3     | since  | us     | when the first window behind the gap began. The windows from it |
--   |       |        |        | to that of `booked` have no gap                                 |
--   | 4     | before | us     | when the last window before the gap began                       |
--   | 5     | from   | us     | like `since`, for the windows before the gap. The beginnings of |
--   |       |        |        | earlier windows are unknown: they lend nothing                  |
--
-- While bookings lie ahead, one more number follows:
--
--   | state | name  | unit    | meaning                                                         |
--   |-------|-------|---------|-----------------------------------------------------------------|
--   | ..    | least | permits | no window has fewer, from that of the call that made the first  |
--   |       |       |         | of these bookings to the one before that of `booked`. A window  |
--   |       |       |         | above its limit, because of a debit, counts as one without any  |
--
-- Exactness. Only sums and remainders of integers below 2^53.
do
  -- Returns the window that is open at an instant: its beginning, and its used permits.
  local function open(l, at)
    local t = l.terms
    if t[3] < 0 then
      if l.used == 0 or at >= l.began + t[2] then return at, 0 end
      return l.began, l.used
    end
    local began = at - (at - t[3]) % t[2]
    return began, l.booked >= began and l.used or 0
  end

  -- Returns how many permits a window can get back by a refund that names no grant.
  local function countable(l, used)
    return used <= l.terms[1] and used or 0
  end

  kinds[FIXED] = {
    terms = '>ddd',

    read = function(l, value)
      local behind
      if not value then
        l.began, l.used, l.since, l.before, l.from = l.booked, 0, l.booked, l.booked, l.booked
      elseif l.terms[3] < 0 then
        l.began, l.used, l.since, l.before, l.from, behind = parse('>ddddd', value, l.first)
      else
        l.began, l.used, behind = parse('>dd', value, l.first)
      end
      if has_back then l.least = behind and behind <= #value and parse('>d', value, behind) or 0 end
    end,

    due = function(l, at, n)
      local t = l.terms
      if n > t[1] then return nil end
      local began, used = open(l, at)
      return used + n <= t[1] and at or began + t[2]
    end,

    take = function(l, at, n)
      local began, used = open(l, at)
      if at > l.now then
        local before, least = l.began, l.used
        if l.booked <= l.now then
          before, least = open(l, l.now)
          l.least = MOST
        end
        -- Windows that are skipped have no permits.
        if began > before then
          l.least = min(l.least, began == before + l.terms[2] and countable(l, least) or 0)
        end
      end
      if l.terms[3] < 0 and l.used == 0 then
        l.since, l.before, l.from = began, began, began
      elseif l.terms[3] < 0 and (began - l.began) % l.terms[2] > 0 then
        l.since, l.before, l.from = began, l.began, l.since
      end
      l.began, l.used = began, min(MOST, used + n)
      l.booked = at
    end,

    move = function(l, by)
      l.began = l.began + by
      if l.terms[3] < 0 then l.since, l.before, l.from = l.since + by, l.before + by, l.from + by end
    end,

    left = function(l, at)
      local t = l.terms
      -- A limit of no permits is never full.
      if t[1] == 0 then return 0, nil end
      local began, used = open(l, at)
      return max(0, t[1] - used), used == 0 and at or began + t[2]
    end,

    expires = function(l)
      return l.began + l.terms[2]
    end,

    value = function(l)
      local least = l.booked > l.now and pack('>d', l.least) or ''
      if l.terms[3] >= 0 then return pack('>dd', l.began, l.used) .. least end
      return pack('>ddddd', l.began, l.used, l.since, l.before, l.from) .. least
    end,
  }

  if has_back then
    -- Until the end of its window.
    kinds[FIXED].lasts = function(l, due)
      local t = l.terms
      local began = t[3]
      if began < 0 then
        if due < l.from then return due end
        began = due < l.since and l.before or l.began
      end
      return due + t[2] - (due - began) % t[2]
    end

    kinds[FIXED].owed = function(l)
      return max(0, l.used - l.terms[1])
    end

    -- Returns how many permits the present window has granted at least, while bookings lie ahead; 0
    -- if it may be above its limit.
    kinds[FIXED].granted = function(l)
      if l.began > l.now then return l.least end
      return l.origin ~= '' and countable(l, l.used - l.alive) or 0
    end

    kinds[FIXED].lend = function(l, at, n)
      if at >= l.booked then return kinds[FIXED].take(l, at, n) end
      if at >= l.began then l.used = min(MOST, l.used + n) end
      return true
    end

    kinds[FIXED].give = function(l, at, n, due)
      local began = open(l, at)
      if due >= max(began, l.began) then l.used = max(0, l.used - n) end
    end
  end
end
