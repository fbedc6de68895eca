-- Several limits, each with its own algorithm, decided in one script: all or nothing.
--
-- State. A limit is one key. Its value is packed numbers (big-endian doubles unless stated
-- otherwise). The numbers of this table come first, then those of the algorithm, whose own tables
-- begin with 1:
--
--   | number | name   | unit | meaning                                                       |
--   |--------|--------|------|---------------------------------------------------------------|
--   | 1      | writes | 1    | the number of the next booking; goes back when one is undone   |
--   | 2      | seen   | us   | the latest server time of a write                              |
--   | 3      | booked | us   | the instant of the last grant, which may lie ahead: no later   |
--   |        |        |      | request is granted before it. The state is as of this instant. |
--   | 4      | held   | us   | the end of the last pause, 0 without one                        |
--   | 5      | back   | byte | the length of the data about bookings that were given back;    |
--   |        |        |      | this data precedes the numbers of the algorithm                |
--
-- If `back` is not 0, twelve numbers follow:
--
--   | number | name   | unit | meaning                                                       |
--   |--------|--------|------|---------------------------------------------------------------|
--   | 6, 7   |        | 1    | the number of places in the list, and of refunds               |
--   | 8      | kept   | 1    | no booking of a lower number is undone                          |
--   | 9      | alive  |permit| permits of the bookings since the origin that are not given     |
--   |        |        |      | back                                                           |
--   | 10     | first  | us   | the first instant of these bookings                            |
--   | 11     |        | byte | the length of `origin`                                         |
--   | 12     |        | byte | the length of the places that are not in the list              |
--   | 13     |        | byte | the length of `real`                                           |
--   | 14     |        | 1    | the number of bookings in `parts`                              |
--   | 15     |        | 1    | the number of numbers in `marks`                               |
--   | 16     | reset  | us   | the instant of the last booking or grant from before a reset, 0 |
--   |        |        |      | if none of them counts any more                                |
--   | 17     | valid  | 1    | the lowest number of a booking from after that reset, and from  |
--   |        |        |      | after the clock was set back; 0 if there are no earlier ones   |
--
-- and texts, in this order:
--
--   | text    | meaning                                                                    |
--   |---------|----------------------------------------------------------------------------|
--   | marks   | of a window, as in room.lua                                                |
--   | real    | in a pause the value without the predicted bookings, else nothing            |
--   | origin  | the value from before all bookings ahead; nothing if one of them has become |
--   |         | a grant                                                                     |
--   | places  | for each place in the list: its instant, its permits, its free permits, the |
--   |         | number of its booking or -1, and the length of the value from before it,    |
--   |         | which follows if a part of the place is taken                               |
--   | later   | the other places, as in places.lua                                         |
--   | parts   | bookings in the format of `places`; their free permits are in other places |
--   | refunds | as in refunds.lua                                                          |
--   | runs    | for each run: its first and its last number, the instant of the last one,   |
--   |         | and the length of the value from before the first one. That value follows   |
--   |         | or is missing: `writes`, `booked`, and the numbers of the algorithm         |
--
-- Exactness. All numbers are integers of magnitude below 2^53, so doubles add, subtract and
-- multiply them without rounding. `whole` also divides them without rounding: a quotient a/b lies
-- at least 1/b from the next integer, which is more than half a unit in the last place while a <
-- 2^53. The client refuses to build limits whose products would be larger.
--
-- Time. The clock is the server's (TIME), in microseconds. Time never goes back for a limit: a
-- reading before `seen` counts as `seen`. If a reading is earlier than `seen` by more than the
-- limit's span, the clock was set, and all instants of the state move with it: what was granted
-- stays granted, no permit accrues for the gap, and no wait is longer than the span and the
-- bookings. A client knows the instant of its booking by the clock from before, which may be that
-- of another booking now. So no booking of a lower number than `valid` is given back. The time
-- `8 * valid` is at or behind the last of these instants: until then no booking without a number is
-- given back, and no grant that is ahead.
--
-- Booking. A request is due at the earliest instant, not before `booked` and `held`, at which every
-- limit has its permits. No limit loses availability by waiting, so that instant is the latest of
-- the instants of the single limits, except for permits that were given back: see room.lua. A
-- request that is due within its maximum wait takes its permits as of that instant; any other
-- request changes nothing, except that the key of a limit that does not start full, or whose
-- request pays for its own size, is kept until a little later than the instant in the reply.
-- Otherwise the next request would get the same wait again.
--
-- Pause. A request that waits behind a pause is booked in a state that ends with the pause, and so
-- is the next request behind it. Such bookings are "predicted": both requests get the instant at
-- which they are due if the pause lasts as long as planned. `real` is the value without these
-- bookings. It counts when the pause has ended, sooner or later, and for any call that changes
-- more. The requests ask again when the pause has ended. A call that changes more forgets them:
-- later requests in the pause are predicted as if they were the first. A limit that is not paused
-- keeps nothing of a predicted request. A request behind others of its process that wait for the
-- end of a pause is not decided if that pause has ended: the others go first.
--
-- Several requests. A call decides about a list of requests, one after the other, each as if it
-- were the only one: the clock stands still, each change is in the numbers that the next request
-- sees, and every key is read and written once.
--
-- Giving back. A booking that is given back is undone together with all bookings behind it, as soon
-- as these are given back, too: the state is again the value from before it. Until then its number
-- is in a run of such bookings. A refund is applied again when a booking from before it is undone.
-- Any other change ends all runs, because the values from before bookings do not have that change.
-- A log has no runs, because its state has each booking: see log.lua. Calls that give nothing back
-- copy the text of the runs. If there are too many runs, the lowest are forgotten: their permits
-- accrue with time.
--
-- When all bookings ahead are given back, and none has become a grant, the state is the origin
-- again, whatever parts of them were given to other requests before.
--
-- A place is the instant of a booking that was given back, with its permits: a request takes
-- permits of the place that are free. So all grants are bookings that were made one behind the
-- other, and every bound still holds. The permits of one instant are interchangeable, so a request
-- may take parts of several places. A booking of which a part is taken is in no run, and its place
-- has the value from before it. A request that takes all of one place makes that booking again: the
-- reply has the number of the booking, and the value from before it if a run has that.
--
-- `lasts` returns the time until which the permits of a place may be granted after its instant,
-- because each window, or each step of a bucket, counts as many. Any other bucket grants them only
-- at the instant. A request takes permits of several places that last, and the rest of its permits
-- behind the last booking.
--
-- `owed` returns how many permits a limit owes at its last booking, because of debits.
--
-- If a place ends, or is the latest one of too many, it is refunded like a grant. When a booking
-- from before the refund is undone, the refund of a place that has ended is applied again, and the
-- refund of the latest one is lost: its booking may be undone as well.
--
-- A grant whose instant has passed is given back by a refund. A window takes it back if it still
-- counts the grant at its last booking, or at the one that is the last when those behind it are
-- undone. Later the permits would be those of other grants. A booking that is given back when its
-- instant has passed is refunded like a place that ends.
--
-- Reset. The state is a new one. Bookings and grants of the old state do not count, so they are not
-- given back. Their numbers are lower than those of the new state. A grant has no number: no grant
-- of an instant up to that of the last old booking is given back. The key is kept for as long as
-- these could be given back to the old state: for twice its span after that instant, or after the
-- end of a later pause, because an estimate counts the window before as well.
--
-- ARGV: the operation; packed, for each key the number of its kind, its own maximum wait in us, and
-- its terms; packed, the time (-1 for TIME) and the numbers of the operation. The numbers of
-- `reserve` are its requests: for each request its maximum wait in us, its mode (0, 1 in shadow
-- mode, 2 behind a pause), a flag (the reply has the state even if the request is granted), and for
-- each key its permits and the most permits. The numbers of any other operation are a span in us
-- (of `pause`), a flag (of `pause`: it keeps the available permits), the instant of a grant (of
-- `refund`; -1: now), and for each key its permits. Then follow the bookings that `reserve` gives
-- back first: for each, packed, its instant and its permits of each key; and for each key the value
-- from before the booking. The instant of a predicted booking is negative.
--
-- Speed. Most calls are `reserve` of one request that is granted at once, and each function takes
-- time to create. Functions that `reserve` never needs are created only for other operations.
-- Functions for bookings and for permits that are given back are created only if a limit has some.

local MOST = 2^52
local MAX_WRITES = 2^51
local FOREIGN = 'the key has a value of another program'
-- How many places are in the list, and how many there are in all.
local MAX_PLACES, MAX_IN_ALL = 32, 4096
local MAX_REFUNDS = 32
local MAX_PARTS = 32
-- 3,000 bookings that are dropped in a random order have 750 runs, of a bucket with 130 kB.
local MAX_RUNS = 1024
local MAX_RUN_BYTES = 163840
local DECADE = 315576000 * 1000000
-- No key is kept for longer, however negative its balance is, except until a booking ahead or the
-- end of a pause.
local CENTURY = 10 * DECADE
-- A limit is kept for this much longer than the wait in the reply, if its key would not be there
-- this long after it.
local LINGER, SLACK = 10 * 1000000, 1000000
-- A request may ask again this much later than the time in the reply.
local TRIP = 100 * 1000
local BUCKET, FIXED, CELLS, ESTIMATE, LOG = 1, 2, 3, 4, 5
local kinds = {}
-- Whether a bucket leaves permits that were given back to later requests, even permits that they
-- cannot take yet.
local sets_apart = false
-- Whether the request comes again when places have ended, whose permits a bucket lends, because it
-- may not wait. A request that may wait is told the time from which it is accepted, which is
-- earlier than that.
local waits_for_loans = false

local pack, parse = struct.pack, struct.unpack
local max, min, floor = math.max, math.min, math.floor
local operation = ARGV[1]

-- a / b rounded down, for integers 0 <= a < 2^53 and 0 < b.
local function whole(a, b)
  return (a - a % b) / b
end

local function whole_up(a, b)
  local rest = a % b
  return (a - rest) / b + (rest > 0 and 1 or 0)
end
