-- The refunds that are applied again when a booking from before them is undone: the values from
-- before the bookings ahead do not have them. A loan is the opposite: refunded permits are granted
-- before the last booking. It is applied again as well.
--
--   | number | name    | unit    | meaning                                                        |
--   |--------|---------|---------|----------------------------------------------------------------|
--   | 1      | due     | us      | the instant of the grant that was refunded                     |
--   | 2      | n       | permits | of the grant; negative for a loan                              |
--   | 3      | spare   | permits | may be lent; -1 for a loan that met the cap                    |
--   | 4      | of      | 1       | the number of the booking whose place was refunded, or -1. The |
--   |        |         |         | refund is not applied again if that booking is undone as well  |
--   | 5      | lent    | permits | of the refund that were lent while no booking was behind it:   |
--   |        |         |         | they are undone together                                       |
--   | 6      | lent_at | us      | the instant of the last loan                                   |
--   | 7      | number  | 1       | of the next booking                                            |
--   | 8      | till    | us      | the instant of the last booking before it                      |

-- Most limits have no booking and no permits that were given back.
local NONE = {}

-- Refunds are texts of eight numbers.
local REFUND = '>dddddddd'

local read_refund, text_of_refund, forget_refund, note_refund
if has_back then
  function read_refund(value, first)
    local due, n, spare, of, lent, lent_at, number, till, behind = parse(REFUND, value, first)
    local refund = {due = due, n = n, spare = spare, of = of}
    refund.lent, refund.lent_at, refund.number, refund.till = lent, lent_at, number, till
    return refund, behind
  end

  function text_of_refund(refund)
    local due, n, spare, of, lent = refund.due, refund.n, refund.spare, refund.of, refund.lent
    return pack(REFUND, due, n, spare, of, lent, refund.lent_at, refund.number, refund.till)
  end

  -- Turns a refund that is not applied again into a loan of its lent permits.
  function forget_refund(back)
    back.n, back.lent, back.spare, back.of = -back.lent, 0, 0, -1
  end

  -- Makes two refunds one that gives back no more than both: the first two that stand side by side
  -- with no booking between them, and of which nothing is lent. Returns whether there are such two.
  local function merge_two(refunds)
    for i = 1, #refunds - 1 do
      local one, other = refunds[i], refunds[i + 1]
      local is_alike = one.number == other.number and (one.of < 0) == (other.of < 0)
      if is_alike and one.n > 0 and other.n > 0 and one.lent == 0 and other.lent == 0 then
        one.due, one.of, one.till = min(one.due, other.due), max(one.of, other.of), other.till
        one.n, one.spare = one.n + other.n, one.spare + other.spare
        table.remove(refunds, i + 1)
        return true
      end
    end
    return false
  end

  -- Notes a refund, or a loan, to be applied again when bookings ahead are undone. If there are too
  -- many, two become one, or else the first is forgotten, and no booking from before it can be
  -- undone.
  function note_refund(l, n, due, spare, of)
    local refunds = l.refunds
    if refunds == NONE then refunds = {} end
    local refund = {due = due, n = n, spare = spare, of = of or -1}
    refund.lent, refund.lent_at, refund.number, refund.till = 0, n < 0 and due or 0, l.writes, l.booked
    -- Two of one kind, with no booking between them, are one.
    local last = refunds[#refunds]
    local is_one = last and last.number == l.writes and last.of < 0 and refund.of < 0 and last.lent == 0
    if is_one and n < 0 and last.n < 0 or is_one and n > 0 and last.n > 0 and last.due == due then
      last.n, last.spare, last.till = last.n + n, last.spare + spare, l.booked
      last.lent_at = refund.lent_at
    else
      refunds[#refunds + 1] = refund
    end
    if #refunds > MAX_REFUNDS and not merge_two(refunds) then
      l.kept_from, l.origin = max(l.kept_from, table.remove(refunds, 1).number), ''
    end
    l.refunds = refunds
  end
end
