-- Token bucket, leaky bucket and SmoothBursty: a level that rises with time, and never above a cap.
--
--   | term | name  | unit                | meaning                                              |
--   |------|-------|---------------------|------------------------------------------------------|
--   | 1    | refill| units per us or step| the units that accrue                                |
--   | 2    | price | units               | the cost of one permit                               |
--   | 3    | cap   | units               | the level never rises above it                       |
--   | 4    | full  | units               | a limiter of this level is reported as full           |
--   | 5    | start | units               | the level of a new state                             |
--   | 6    | most  | permits             | the most that can be available                       |
--   | 7    | mode  |                     | 0: a request of more than the cap is never due;      |
--   |      |       |                     | 1: it waits for its own cost; 2: the next one pays   |
--   | 8    | step  | us                  | 0, or the refill accrues once per step of Unix time   |
--   | 9    | offset| us                  | of the steps                                         |
--   | 10   | linger| us                  | a full state is kept for this much longer             |
--   | 11   | lasts | us                  | an empty bucket is kept for this time                 |
--
--   | state | name  | unit  | meaning                                                           |
--   |-------|-------|-------|-------------------------------------------------------------------|
--   | 1     | level | units | at `booked`; negative if permits are owed, -2^53 if owed forever   |
--   | 2     | unit  |       | the price (mode 2: the refill) in which the level counts           |
--   | 3     | spent | 1     | 1 if the available permits are spent when the pause ends: until    |
--   |       |       |       | then the level is the one from before, in case the pause is ended  |
--   |       |       |       | sooner; plus 2 if the next fields follow, while bookings lie ahead |
--   | 4     | shift | us    | `booked` is this much later than the last grant, because of a      |
--   |       |       |       | pause                                                              |
--   | 5     | slow  | us    | the time to become full again (as new), by the slowest terms of    |
--   |       |       |       | all writers of this state                                          |
--   | ..    | credit| units | given back while bookings lie ahead, and not taken yet              |
--   | ..    |       |       | the number of numbers in `marks`                                   |
--   | ..    | marks |       | as in room.lua                                                     |
--   | ..    | peaks |       | at most 8: for each its instant, which rises, and a level, which   |
--   |       |       |       | falls. No grant behind the peak before found a higher level, and   |
--   |       |       |       | no later grant did. The level of a peak that met the cap is one    |
--   |       |       |       | unit above the cap                                                 |
--
-- Refund. Without the refunded grant, each later level would be higher by the grant's cost, unless
-- it met the cap. So a refund gives back no more than the least room that any later grant found, or
-- the room now. The bookings ahead are such grants. If there are more than 8 peaks, two become
-- one, with the later instant and the higher level: two neighbours that are nearest in level, and
-- that have both passed or both lie ahead. This costs a refund an eighth of the cap at most, and a
-- sixth while bookings lie ahead.
--
-- Credit. A request waits behind the bookings ahead, except for permits that were given back since:
-- they raise the level at each instant ahead, and the bookings ahead do not need them. So a request
-- takes them now, as far as the level never falls below zero by it. The credit is left to such
-- requests. It adds to the level for others only where the cap leaves no room for the permits that
-- they ask for. As bookings pass, more of the credit can be taken: a request behind the bookings
-- ahead may be given a later instant than before, and is granted at the earlier one. In a pause the
-- level is unknown.
--
-- Pause. Nothing accrues, so at its end the level is the one from before, as of an instant that is
-- later by the length of the pause. If the pause spends the permits, its end counts as a peak that
-- met the cap, but for what was owed there. `hold` moves `booked` to the instant for the predicted
-- end, and an earlier end moves it back by the rest, but never behind a grant.
--
-- Debts. A level below -2^51 could not be added to the price of a request. So a larger debt is
-- deferred: the state becomes as of a later instant, at which the debt of the time until then is
-- paid and 2^51 units are still owed. No permit is available before: a refund of more than these
-- makes none available sooner.
--
-- Exactness. A rate of p permits in q us, reduced, has a refill of p and a price of q: the level is
-- an integer, and time adds p for each us. Only due instants are rounded, up to whole us. In the us
-- of its due instant a bucket may gain p - 1 units more than the request pays, and a small bucket
-- would overflow. So the client adds p - 1 units to the cap, less than accrues in a us.
do
  local MAX_PEAKS = 8

  -- Returns what a level becomes at a later instant.
  local function filled(t, level, from, at, cap)
    if level <= -MOST then return level end
    local refills = at - from
    if t[8] > 0 then
      refills = floor((at - t[9]) / t[8]) - floor((from - t[9]) / t[8])
    end
    local more = refills * t[1]
    -- This much repays any negative level and fills the cap. A larger product may not be exact.
    if more > 2 * MOST then more = 2 * MOST end
    level = level + more
    return level < cap and level or cap
  end

  -- Returns the instant at which `refills` refills have accrued after `at`.
  local function after(t, at, refills)
    if t[8] > 0 then
      return t[9] + (floor((at - t[9]) / t[8]) + refills) * t[8]
    end
    return at + refills
  end

  -- Returns the cap for a request of n permits.
  local function cap_of(t, n)
    return t[7] == 1 and max(t[3], n * t[2]) or t[3]
  end

  -- Notes the level that a grant found.
  local function peak(l, at, level)
    local peaks = l.peaks
    local last = #peaks
    while last > 0 and (peaks[last - 1] >= at or peaks[last] <= level) do
      if peaks[last] > level then level = peaks[last] end
      peaks[last], peaks[last - 1] = nil, nil
      last = last - 2
    end
    peaks[last + 1], peaks[last + 2] = at, level
    if last == 2 * MAX_PEAKS then
      local nearest
      for i = 2, last, 2 do
        -- Grants ahead find less when permits are lent, and grants that have passed do not.
        local is_same = peaks[i - 1] > l.now or peaks[i + 1] <= l.now
        if is_same and not (nearest and peaks[i] - peaks[i + 2] >= peaks[nearest] - peaks[nearest + 2]) then
          nearest = i
        end
      end
      peaks[nearest + 2] = peaks[nearest]
      table.remove(peaks, nearest)
      table.remove(peaks, nearest - 1)
    end
  end

  -- Returns the instant, not before `at`, at which a level has become `need`.
  local function reached(t, level, at, need)
    return level >= need and at or after(t, at, whole_up(need - level, t[1]))
  end

  -- Returns how many permits are available at a level, when the limiter is full, and when a permit
  -- is available.
  local function left_of(t, level, at)
    local available = 0
    if level >= 0 and (t[1] > 0 or t[7] ~= 2) then
      available = min(t[6], whole(level, t[2]) + (t[7] == 2 and 1 or 0))
    end
    if level >= t[4] then return available, at, at end
    if t[1] == 0 or level <= -MOST then return available, nil, nil end
    local next_at = available > 0 and at or reached(t, level, at, t[7] == 2 and 0 or t[2])
    return available, reached(t, level, at, t[4]), next_at
  end

  -- Returns the time until a level is as full as a new state, including its cap. A process of
  -- slower terms would see a new state before: its bucket takes `slow` to fill, and as much again
  -- for each cap that is owed. That is exact if the caps are equal; other caps count wrong.
  local function expires_in(t, level, slow)
    if t[1] == 0 or level <= -MOST then return CENTURY end
    local refills = level < t[3] and whole_up(t[3] - level, t[1]) + 1 or 1
    local time = refills * (t[8] > 0 and t[8] or 1) + t[10]
    if slow > t[11] then
      local owed = max(0, -level)
      -- What SmoothBursty owes is a time, by any terms.
      local more = t[7] == 2 and whole_up(owed, t[1]) or slow * whole_up(owed, max(1, t[3]))
      time = max(time, slow + more)
    end
    return time
  end

  -- The plain request at one bucket, unless the terms have changed, or a pause has spent permits.
  if is_plain and #KEYS == 1 then
    local t, value = {parse('>ddddddddddd', ARGV[2], 17)}, values[1]
    local unit = t[7] == 2 and t[1] or t[2]
    local level, old, spent, slow, peaks, _ = t[5], unit, 0, t[11], {}
    local writes, booked, held = begins(value)
    if writes and value then
      level, old, spent, _, slow = parse('>ddddd', value, 41)
      slow = max(slow, t[11])
      local count = (#value - 80) / 8
      peaks = {parse('>' .. ('d'):rep(count), value, 81)}
      -- The last number is the position at which the parsing ended.
      peaks[count + 1] = nil
    end
    local price, cap = n * t[2], cap_of(t, n)
    local need = t[7] == 2 and 0 or price
    if
      writes and n > 0 and most <= n and old == unit and spent == 0 and t[1] > 0 and need <= cap
      and level > -MOST and price <= MOST and level - price - t[2] > -MOST
    then
      local found, fields = filled(t, level, booked, now, MOST), nil
      if min(found, cap) < need then
        local due, own = reached(t, found, now, need), parse('>d', ARGV[2], 9)
        -- A request that may wait, or for which the key is to be kept, is left to the other files.
        local stays = t[10] == 0 or value and booked + expires_in(t, level, slow) >= due + SLACK
        if due - now > min(longest, own) and stays then
          fields = {mode == 1 and 2 or 0, due - now, 1, 0, n}
          local available, full, next_at = left_of(t, min(found, cap_of(t, 1)), now)
          report(fields, 1, available, full, next_at, 0)
        end
      else
        -- Distinguishes a level that met the cap from one that just filled it.
        peak({peaks = peaks, now = now}, now, min(found, cap + 1))
        level = min(found, cap) - price
        fields = {1, 0, 0, now, n}
        if wants_state == 1 then
          local available, full, next_at = left_of(t, level, now)
          report(fields, 1, available, full, next_at, available)
        end
        local state = pack('>ddddd' .. ('d'):rep(#peaks), level, unit, 0, 0, slow, unpack(peaks))
        local ends = now + min(expires_in(t, level, slow), CENTURY)
        state = pack('>ddddd', writes + 1, now, now, held, 0) .. state
        write(KEYS[1], state, expiry(KEYS[1], ends, t[10] > 0 and value))
      end
      if fields then return {fields} end
    end
    is_plain = false
  end

  -- No bound of the level is known until no booking lies ahead.
  local function forget_marks(l)
    l.credit, l.marks = 0, {MOST, -MOST}
  end

  -- Returns the refills that n permits cost, and the units that they cost beyond these. n x price
  -- may be above 2^53, so each bit of n is added by itself.
  local function cost(t, n)
    local refills, rest, bit = 0, 0, 2^32
    while bit >= 1 do
      refills, rest = 2 * refills, 2 * rest
      if n >= bit then
        n, refills, rest = n - bit, refills + whole(t[2], t[1]), rest + t[2] % t[1]
      end
      refills, rest = refills + whole(rest, t[1]), rest % t[1]
      bit = bit / 2
    end
    return refills, rest
  end

  -- Defers a debt of n permits that were taken from a level at an instant.
  local function defer(l, at, level, n)
    local t = l.terms
    if t[1] == 0 or level <= -MOST then
      l.level = -2 * MOST
      return
    end
    local refills, rest = cost(t, n)
    local owed = level < 0 and whole_up(-level, t[1]) or 0
    level = level + owed * t[1]
    local stays = min(whole(level + MOST / 2, t[1]), refills + owed)
    local ends = after(t, at, refills + owed - stays)
    if ends - l.now > CENTURY then
      l.level = -2 * MOST
      return
    end
    forget_marks(l)
    l.level, l.booked = level - rest - stays * t[1], ends
  end

  -- Returns whether the level at an instant must stay the one from before the pause.
  local function stands(l, at)
    return l.spent == 1 and l.now < l.held and at == l.booked
  end

  -- Returns the level at an instant.
  local function level_at(l, at, cap)
    local t, level = l.terms, l.level
    if l.spent == 1 then level = min(level, t[7] == 2 and -t[2] or 0) end
    return filled(t, level, l.booked, at, cap)
  end

  -- Empties the bucket at the end of a pause that spends the available permits. A refund of a grant
  -- from before this end gives back no more than what was owed there.
  local function spend(l)
    if l.spent ~= 1 then return end
    l.was_spent = true
    local t = l.terms
    local empty = t[7] == 2 and -t[2] or 0
    peak(l, l.booked, t[3] + min(0, l.level - empty))
    l.level, l.spent = min(l.level, empty), 0
  end

  -- Returns how much of the level at an instant behind all bookings is left to requests that arrive
  -- now.
  local apart

  kinds[BUCKET] = {
    terms = '>ddddddddddd',

    read = function(l, value)
      local t, peaks = l.terms, {}
      local unit = t[7] == 2 and t[1] or t[2]
      l.peaks, l.slow = peaks, t[11]
      if has_back then forget_marks(l) end
      if not value then
        l.level, l.spent, l.shift = t[5], 0, 0
        return
      end
      local first = l.first
      local level, old, slow
      level, old, l.spent, l.shift, slow, first = parse('>ddddd', value, first)
      if slow > l.slow then l.slow = slow end
      if l.spent >= 2 then
        local credit, count_marks
        l.spent = l.spent - 2
        credit, count_marks, first = parse('>dd', value, first)
        if has_back then
          l.credit, l.marks, first = credit, marks.read(value, first, count_marks)
        else
          -- These bookings have passed.
          first = first + 8 * count_marks
        end
      end
      local last = 0
      for i = first, #value - 15, 16 do
        peaks[last + 1], peaks[last + 2] = parse('>dd', value, i)
        last = last + 2
      end
      -- Other terms: a bucket keeps its permits, and SmoothBursty its times.
      if old ~= unit then
        if old > 0 and unit > 0 and level > -MOST then
          local count = floor(level / old)
          local rest = (level - count * old) * unit
          rest = rest < MOST and whole(rest, old) or max(0, floor(rest / old) - 1)
          -- Of a debt that does not fit, the rest is forgiven.
          level = max(count * unit + rest, 1 - MOST)
        end
        for i = 2, last, 2 do peaks[i] = MOST end
        -- Another burst may take longer to fill, even if its terms take equally long.
        l.slow = max(l.slow, t[11] + 1)
        if has_back then forget_marks(l) end
      end
      l.level = level
    end,

    span = function(l)
      return l.terms[11] - l.terms[10]
    end,

    -- Returns the instant of the last grant. `booked` may be later, because of a pause or a debt,
    -- and so may be a peak: a debit in a pause counts at the end of the pause.
    last = function(l)
      local last = l.peaks[#l.peaks - 1] or 0
      return l.now < l.held and min(last, l.booked - l.shift) or last
    end,

    due = function(l, at, n)
      local t = l.terms
      local price = n * t[2]
      local cap, need = t[3], price
      if t[7] == 1 and price > cap then cap = price end
      if t[7] == 2 then need = 0 end
      local level = level_at(l, at, cap)
      -- The level is not negative at the instant of a grant, so the grant leaves more than -2^52.
      if level <= -MOST or price >= MOST or need > cap then return nil end
      -- The units that are set apart accrue again, but not at a rate of zero.
      if has_back and t[1] > 0 then need = need + apart(l, cap - need, price) end
      -- Without a rate SmoothBursty grants nothing: the time of the next request never comes.
      if t[1] == 0 and (t[7] == 2 or level < need) then return nil end
      return reached(t, level, at, need)
    end,

    take = function(l, at, n)
      local t = l.terms
      local is_ahead = at > l.now
      if is_ahead then need_marks() end
      if is_ahead and l.booked <= l.now then
        -- The first booking ahead.
        forget_marks(l)
        if l.held <= l.now then l.marks = {l.now, level_at(l, l.now, t[3])} end
      elseif is_ahead and at > l.booked and l.marks[1] < MOST then
        marks.note(l, l.booked, l.level)
      end
      local cap, found = cap_of(t, n), l.level
      if not stands(l, at) then
        spend(l)
        found = level_at(l, at, MOST)
      end
      -- Distinguishes a level that met the cap from one that just filled it.
      peak(l, at, min(found, cap + 1))
      found = min(found, cap)
      l.level, l.booked = found - n * t[2], at
      if l.level < -MOST / 2 and operation ~= 'reserve' then defer(l, at, found, n) end
    end,

    move = function(l, by)
      local peaks = l.peaks
      forget_marks(l)
      for i = 1, #peaks, 2 do peaks[i] = peaks[i] + by end
    end,

    left = function(l, at)
      local t = l.terms
      return left_of(t, level_at(l, at, cap_of(t, 1)), at)
    end,

    expires = function(l)
      local t, level = l.terms, l.level
      if l.spent == 1 then level = min(level, t[7] == 2 and -t[2] or 0) end
      return l.booked + expires_in(t, level, l.slow)
    end,

    value = function(l)
      local peaks = l.peaks
      local spent, ahead = l.spent, ''
      if l.booked > l.now then
        spent, ahead = spent + 2, pack('>dd', l.credit, #l.marks) .. marks.text(l.marks)
      end
      local t = l.terms
      local unit = t[7] == 2 and t[1] or t[2]
      local text = pack('>ddddd', l.level, unit, spent, l.shift, l.slow) .. ahead
      return text .. pack('>' .. ('d'):rep(#peaks), unpack(peaks))
    end,
  }

  local bucket = kinds[BUCKET]

  if has_back then
    -- Until the end of its step, because nothing accrues before; or until the end of a pause that
    -- spends the available permits. In a predicted state that is not known, so a place may be
    -- expected a step longer.
    function bucket.lasts(l, due)
      local t = l.terms
      local ends = t[8] > 0 and after(t, due, 1) or due
      local is_spent = (l.spent == 1 or l.was_spent or l.real ~= '') and due < l.held
      return is_spent and min(ends, l.held) or ends
    end

    function bucket.owed(l)
      return whole_up(max(0, -l.level), l.terms[2])
    end

    -- Permits that were given back, or are lent, change the level at each instant ahead.
    local function raise(l, units)
      l.credit = max(0, l.credit + units)
      marks.raise(l, units)
    end

    -- Returns a bound of the level from now to the last booking.
    local function lowest(l)
      local function filled_now(from, level)
        return filled(l.terms, level, from, l.now, l.terms[3])
      end
      return min(l.level, marks.least(l, filled_now))
    end

    function apart(l, room, price)
      if waits_for_loans or l.booked <= l.now or l.credit <= 0 or l.held > l.now then return 0 end
      local peaks, i = l.peaks, 1
      while peaks[i] and peaks[i] <= l.now do i = i + 2 end
      if not sets_apart and lowest(l) + l.terms[3] - (peaks[i + 1] or MOST) < price then return 0 end
      return max(0, min(l.credit, room))
    end

    -- Returns how many permits may be granted before the last booking.
    function bucket.lendable(l)
      if l.booked <= l.now or l.held > l.now then return 0 end
      return whole(max(0, min(l.credit, lowest(l))), l.terms[2])
    end

    -- Returns how many permits may be granted before the last booking whether they were given back
    -- or not.
    function bucket.room(l)
      return whole(max(0, lowest(l)), l.terms[2])
    end

    -- Returns when n permits may be granted before the last booking, if no more are given back: the
    -- places that end until then are refunded.
    function bucket.lends_at(l, n)
      if l.booked <= l.now or l.held > l.now then return nil end
      local cap, price, peaks, i, given = l.terms[3], l.terms[2], l.peaks, 1, 0
      local least = min(l.credit, lowest(l))
      for _, place in ipairs(l.places) do
        if place.due >= l.booked then return nil end
        while peaks[i] and peaks[i] <= place.due do i = i + 2 end
        local room = cap - max(l.level, peaks[i + 1] or l.level) - given
        given = given + max(0, min(room, place.free * price))
        if least + given >= n * price then return place.due end
      end
    end

    -- Gives permits back, at most as many units as there was room for when some of the same refund
    -- were lent. Returns how many of them may be lent.
    function bucket.give(l, at, n, due, _, most)
      -- Time that idled beyond the cap stays: a larger request of mode 1 may count it.
      local stays = stands(l, at)
      if not stays then spend(l) end
      local level = stays and l.level or level_at(l, at, MOST)
      local cap, peaks = l.terms[3], l.peaks
      local room = min(cap - level, most or MOST)
      local i = 1
      while peaks[i] and peaks[i] <= due do i = i + 2 end
      if peaks[i] then room = min(room, cap - peaks[i + 1]) end
      if room <= 0 or level <= -MOST then return 0 end
      local given = min(n * l.terms[2], room)
      l.level, l.booked, l.spent = level + given, at, stays and 1 or 0
      -- The level is higher from the instant of the grant on, which may lie ahead.
      local is_lent = due <= l.now
      if is_lent then raise(l, given) end
      -- Without the refunded grant later grants would have found this much more.
      l.peaks = {}
      for i = 1, #peaks, 2 do
        peak(l, peaks[i], peaks[i + 1] + (peaks[i] > due and given or 0))
      end
      return is_lent and whole(given, l.terms[2]) or 0
    end

    -- Grants permits that were given back, at an instant before the last booking. That instant may
    -- have passed if the grant is applied again. The grants ahead find less then, unless the level
    -- meets the cap before, or met it when the grant was made first. Returns whether they do.
    function bucket.lend(l, at, n, met)
      if at > l.now and at > l.booked then
        -- Another limit set its instant, and no booking is left behind it.
        l.kind.take(l, at, n)
        return true
      end
      local t, units, peaks, most = l.terms, n * l.terms[2], l.peaks, nil
      if l.booked <= l.now then
        spend(l)
        l.level, l.booked = level_at(l, l.now, t[3]), l.now
      end
      l.peaks = {}
      for i = 1, #peaks, 2 do
        local instant, level = peaks[i], peaks[i + 1]
        if instant > at and not most then
          -- This grant finds no more than the next one.
          most = level
          peak(l, at, most)
        end
        if instant > max(at, l.now) then
          met = met or level > t[3]
          if not met then level = level - units end
        end
        peak(l, instant, level)
      end
      if not most then peak(l, at, l.level) end
      l.level = l.level - units
      raise(l, -units)
      return not met
    end

    -- If a refund and a loan of it are applied again, the level behind the loan stays. Grants
    -- between the two found a higher level. But if the level met the cap between the two, the
    -- refund is lost as far as it was above the cap, and the loan is not: later grants found less,
    -- until the level met the cap again. Where a grant is left behind the loan, the loan found no
    -- more than that grant. Where none is left, units that accrued since the loan make up for what
    -- was lost. Returns the room for the rest of the refund before the loan.
    function bucket.pass_on(l, due, at, n)
      local cap, units, peaks = l.terms[3], n * l.terms[2], l.peaks
      local most, lost, met, room = nil, 0, false, MOST
      local function passes(level)
        lost, room = max(lost, min(level, cap) + units - cap), min(room, cap - units - level)
        return min(level + units, cap + 1)
      end
      l.peaks = {}
      for i = 1, #peaks, 2 do
        local instant, level = peaks[i], peaks[i + 1]
        if instant > at then
          if not most then
            most = level
            peak(l, at, passes(most))
          end
          met = met or level > cap
          if not met then level = level - lost end
        elseif instant > due then
          level = passes(level)
        end
        peak(l, instant, level)
      end
      local level, from = l.level - lost, l.booked
      if not most then
        from = max(from, at)
        local found, accrued = level_at(l, from, MOST), filled(l.terms, 0, at, from, MOST)
        local is_full = found >= cap
        most = is_full and cap or found - accrued
        local passed = passes(most)
        if lost > 0 then spend(l) end
        level = is_full and min(cap, cap - lost + accrued) or found - lost
        peak(l, at, passed)
      end
      if lost > 0 then
        l.level, l.booked = level, from
        raise(l, -lost)
      end
      return room
    end
  end

  if operation ~= 'reserve' then
    function bucket.hold(l, till, keep)
      forget_marks(l)
      -- The level stands still until then.
      if not stands(l, l.at) then
        spend(l)
        -- What has accrued for a request that is larger than the bucket stands still as well.
        l.level = level_at(l, l.at, l.terms[7] == 1 and MOST or l.terms[3])
      end
      if not keep then l.spent = 1 end
      local more = max(0, till - max(l.now, l.held))
      l.shift = (l.now < l.held and l.shift or 0) + more
      l.booked = l.at + more
    end

    function bucket.resume(l)
      l.booked, l.spent = l.booked - min(l.held - l.now, l.shift), 0
      l.shift = 0
      -- What was charged in the pause counted at its predicted end.
      for i = 1, #l.peaks, 2 do l.peaks[i] = min(l.peaks[i], l.booked) end
    end
  end
end
