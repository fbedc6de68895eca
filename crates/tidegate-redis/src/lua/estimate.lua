-- Sliding window by estimate: the count of this window, and a share of the one before.
--
--   | term | name   | unit    | meaning                                                         |
--   |------|--------|---------|-----------------------------------------------------------------|
--   | 1    | limit  | permits | of one window; limit x length is below 2^51                     |
--   | 2    | length | us      | of the window                                                   |
--   | 3    | offset | us      | of the windows, relative to those of Unix time                  |
--
--   | state | name   | unit    | meaning                                                        |
--   |-------|--------|---------|----------------------------------------------------------------|
--   | 1     | before | permits | used in the window before that of `booked`; below 2^32          |
--   | 2     | used   | permits | used in the window of `booked`; below 2^32                      |
--
-- Exactness. `before x left <= room x length` compares two products. The right one is an integer
-- below 2^52. The left one may be larger after debits. Then it is rounded, but stays larger.
do
  local function open(l, at)
    local t = l.terms
    local began = at - (at - t[3]) % t[2]
    if l.booked >= began then return began, l.before, l.used end
    if l.booked >= began - t[2] then return began, l.used, 0 end
    return began, 0, 0
  end

  -- Returns the part of a window with `permits` permits that may still count.
  local function part(permits, room, length)
    if permits == 0 then return length end
    return min(length, whole(room * length, permits))
  end

  local function take(l, at, n)
    local _
    _, l.before, l.used = open(l, at)
    l.used = min(2^32 - 1, l.used + n)
    l.booked = at
  end

  kinds[ESTIMATE] = {
    terms = '>ddd',

    read = function(l, value)
      if value then
        l.before, l.used = parse('>dd', value, l.first)
      else
        l.before, l.used = 0, 0
      end
    end,

    due = function(l, at, n)
      local t = l.terms
      if n > t[1] then return nil end
      local began, before, used = open(l, at)
      local room = t[1] - used - n
      if room >= 0 then
        if before * (began + t[2] - at) <= room * t[2] then return at end
        local counts = part(before, room, t[2])
        if counts > 0 then return began + t[2] - counts end
      end
      return began + 2 * t[2] - part(used, t[1] - n, t[2])
    end,

    take = take,

    left = function(l, at)
      local t = l.terms
      local began, before, used = open(l, at)
      local counts = min(before * (began + t[2] - at), MOST)
      local full = at
      if used > 0 then
        full = began + 2 * t[2]
      elseif before > 0 then
        full = began + t[2]
      end
      return max(0, t[1] - used - whole_up(counts, t[2])), full
    end,

    expires = function(l)
      return l.booked + 2 * l.terms[2]
    end,

    value = function(l)
      return pack('>dd', l.before, l.used)
    end,
  }

  if has_back then
    -- Until the end of its window.
    kinds[ESTIMATE].lasts = function(l, due)
      local t = l.terms
      return due + t[2] - (due - t[3]) % t[2]
    end

    kinds[ESTIMATE].owed = function(l)
      local began, before, used = open(l, l.booked)
      local counts = min(before * (began + l.terms[2] - l.booked), MOST)
      return max(0, used + whole_up(counts, l.terms[2]) - l.terms[1])
    end

    kinds[ESTIMATE].lend = function(l, at, n)
      if at >= l.booked then return take(l, at, n) end
      local began = open(l, l.booked)
      if at >= began then
        l.used = min(2^32 - 1, l.used + n)
      elseif at >= began - l.terms[2] then
        l.before = min(2^32 - 1, l.before + n)
      end
      return true
    end

    kinds[ESTIMATE].give = function(l, at, n, due)
      local began = open(l, at)
      if due < began - l.terms[2] then return end
      take(l, at, 0)
      local used = due >= began and min(n, l.used) or 0
      l.used = l.used - used
      l.before = max(0, l.before - (n - used))
    end
  end
end
