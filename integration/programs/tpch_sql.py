"""The 22 queries of TPC-H, unordered, with parameters that find rows at small scales too.

Those that join tables by what they are kept by say by which columns rows are exchanged, where small
tables are not broadcast: ``orders_by_customer`` and ``lineitem_by_part`` are kept a second time.
"""

from __future__ import annotations

REVENUE = "sum(l_extendedprice * (1 - l_discount)) AS revenue"

TPCH: dict[str, tuple[str, str | None]] = {}
"""SQL by name, and the columns of the exchanges; None: rows are exchanged to be joined."""


def _query(name: str, sql: str, by: str | None = None) -> None:
    TPCH[name] = sql, by


_query(
    "Q1",
    """
    SELECT l_returnflag, l_linestatus, sum(l_quantity), sum(l_extendedprice),
      sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)), avg(l_quantity), avg(l_discount),
      count(*)
    FROM lineitem WHERE l_shipdate <= DATE '1998-12-01' - INTERVAL 90 DAY
    GROUP BY l_returnflag, l_linestatus
    """,
    "l_returnflag l_linestatus",
)
_query(
    "Q2",
    """
    SELECT s_acctbal, s_name, n_name, p_partkey, p_mfgr
    FROM part, supplier, partsupp, nation, region
    WHERE p_partkey = ps_partkey AND s_suppkey = ps_suppkey AND p_size < 25
      AND p_type LIKE '%BRASS' AND s_nationkey = n_nationkey AND n_regionkey = r_regionkey
      AND r_name = 'EUROPE' AND ps_supplycost = (
        SELECT min(ps_supplycost) FROM partsupp, supplier, nation, region
        WHERE p_partkey = ps_partkey AND s_suppkey = ps_suppkey AND s_nationkey = n_nationkey
          AND n_regionkey = r_regionkey AND r_name = 'EUROPE')
    """,
)
_query(
    "Q3",
    f"""
    SELECT l_orderkey, {REVENUE}, o_orderdate, o_shippriority
    FROM customer, orders, lineitem
    WHERE c_mktsegment = 'BUILDING' AND c_custkey = o_custkey AND l_orderkey = o_orderkey
      AND o_orderdate < DATE '1995-03-15' AND l_shipdate > DATE '1995-03-15'
    GROUP BY l_orderkey, o_orderdate, o_shippriority
    """,
)
_query(
    "Q4",
    """
    SELECT o_orderpriority, count(*) FROM orders
    WHERE o_orderdate >= DATE '1993-07-01' AND o_orderdate < DATE '1993-10-01' AND EXISTS (
      SELECT * FROM lineitem WHERE l_orderkey = o_orderkey AND l_commitdate < l_receiptdate)
    GROUP BY o_orderpriority
    """,
    "o_orderpriority",
)
_query(
    "Q5",
    f"""
    SELECT n_name, {REVENUE} FROM customer, orders, lineitem, supplier, nation, region
    WHERE c_custkey = o_custkey AND l_orderkey = o_orderkey AND l_suppkey = s_suppkey
      AND c_nationkey = s_nationkey AND s_nationkey = n_nationkey AND n_regionkey = r_regionkey
      AND r_name = 'ASIA' AND o_orderdate >= DATE '1994-01-01' AND o_orderdate < DATE '1995-01-01'
    GROUP BY n_name
    """,
)
_query(
    "Q6",
    """
    SELECT sum(l_extendedprice * l_discount) AS revenue FROM lineitem
    WHERE l_shipdate >= DATE '1994-01-01' AND l_shipdate < DATE '1995-01-01'
      AND l_discount BETWEEN 0.05 AND 0.07 AND l_quantity < 24
    """,
    "",
)
_query(
    "Q7",
    """
    SELECT supp_nation, cust_nation, l_year, sum(volume) FROM (
      SELECT n1.n_name AS supp_nation, n2.n_name AS cust_nation, year(l_shipdate) AS l_year,
        l_extendedprice * (1 - l_discount) AS volume
      FROM supplier, lineitem, orders, customer, nation n1, nation n2
      WHERE s_suppkey = l_suppkey AND o_orderkey = l_orderkey AND c_custkey = o_custkey
        AND s_nationkey = n1.n_nationkey AND c_nationkey = n2.n_nationkey
        AND (n1.n_name = 'FRANCE' AND n2.n_name = 'GERMANY'
          OR n1.n_name = 'GERMANY' AND n2.n_name = 'FRANCE')
        AND l_shipdate BETWEEN DATE '1995-01-01' AND DATE '1996-12-31')
    GROUP BY supp_nation, cust_nation, l_year
    """,
)
_query(
    "Q8",
    """
    SELECT o_year, sum(CASE WHEN nation = 'BRAZIL' THEN volume ELSE 0 END) / sum(volume) FROM (
      SELECT year(o_orderdate) AS o_year, l_extendedprice * (1 - l_discount) AS volume,
        n2.n_name AS nation
      FROM part, supplier, lineitem, orders, customer, nation n1, nation n2, region
      WHERE p_partkey = l_partkey AND s_suppkey = l_suppkey AND l_orderkey = o_orderkey
        AND o_custkey = c_custkey AND c_nationkey = n1.n_nationkey
        AND n1.n_regionkey = r_regionkey AND r_name = 'AMERICA' AND s_nationkey = n2.n_nationkey
        AND o_orderdate BETWEEN DATE '1995-01-01' AND DATE '1996-12-31'
        AND p_type LIKE 'ECONOMY%')
    GROUP BY o_year
    """,
)
_query(
    "Q9",
    """
    SELECT nation, o_year, sum(amount) FROM (
      SELECT n_name AS nation, year(o_orderdate) AS o_year,
        l_extendedprice * (1 - l_discount) - ps_supplycost * l_quantity AS amount
      FROM part, supplier, lineitem, partsupp, orders, nation
      WHERE s_suppkey = l_suppkey AND ps_suppkey = l_suppkey AND ps_partkey = l_partkey
        AND p_partkey = l_partkey AND o_orderkey = l_orderkey AND s_nationkey = n_nationkey
        AND p_name LIKE '%green%')
    GROUP BY nation, o_year
    """,
)
_query(
    "Q10",
    f"""
    SELECT c_custkey, c_name, {REVENUE}, c_acctbal, n_name, c_address, c_phone, c_comment
    FROM customer, orders, lineitem, nation
    WHERE c_custkey = o_custkey AND l_orderkey = o_orderkey AND o_orderdate >= DATE '1993-10-01'
      AND o_orderdate < DATE '1994-01-01' AND l_returnflag = 'R' AND c_nationkey = n_nationkey
    GROUP BY c_custkey, c_name, c_acctbal, c_phone, n_name, c_address, c_comment
    """,
)
_query(
    "Q11",
    """
    SELECT ps_partkey, sum(ps_supplycost * ps_availqty) AS value FROM partsupp, supplier, nation
    WHERE ps_suppkey = s_suppkey AND s_nationkey = n_nationkey AND n_name = 'GERMANY'
    GROUP BY ps_partkey HAVING sum(ps_supplycost * ps_availqty) > (
      SELECT sum(ps_supplycost * ps_availqty) * 0.001 FROM partsupp, supplier, nation
      WHERE ps_suppkey = s_suppkey AND s_nationkey = n_nationkey AND n_name = 'GERMANY')
    """,
)
_query(
    "Q12",
    """
    SELECT l_shipmode,
      sum(CASE WHEN o_orderpriority IN ('1-URGENT', '2-HIGH') THEN 1 ELSE 0 END) AS high,
      sum(CASE WHEN o_orderpriority NOT IN ('1-URGENT', '2-HIGH') THEN 1 ELSE 0 END) AS low
    FROM orders, lineitem
    WHERE o_orderkey = l_orderkey AND l_shipmode IN ('MAIL', 'SHIP')
      AND l_commitdate < l_receiptdate AND l_shipdate < l_commitdate
      AND l_receiptdate >= DATE '1994-01-01' AND l_receiptdate < DATE '1995-01-01'
    GROUP BY l_shipmode
    """,
    "l_shipmode",
)
_query(
    "Q13",
    """
    SELECT c_count, count(*) FROM (
      SELECT c_custkey, count(o_orderkey) AS c_count FROM customer
      LEFT JOIN orders_by_customer ON c_custkey = o_custkey
        AND o_comment NOT LIKE '%special%requests%'
      GROUP BY c_custkey)
    GROUP BY c_count
    """,
    "c_count",
)
_query(
    "Q14",
    """
    SELECT 100.00 * sum(
        CASE WHEN p_type LIKE 'PROMO%' THEN l_extendedprice * (1 - l_discount) ELSE 0 END)
      / sum(l_extendedprice * (1 - l_discount))
    FROM lineitem, part WHERE l_partkey = p_partkey AND l_shipdate >= DATE '1995-09-01'
      AND l_shipdate < DATE '1995-10-01'
    """,
)
_query(
    "Q15",
    f"""
    WITH sold AS (
      SELECT l_suppkey AS supplier_no, {REVENUE} FROM lineitem
      WHERE l_shipdate >= DATE '1996-01-01' AND l_shipdate < DATE '1996-04-01' GROUP BY l_suppkey)
    SELECT s_suppkey, s_name, s_address, s_phone, revenue FROM supplier, sold
    WHERE s_suppkey = supplier_no AND revenue = (SELECT max(revenue) FROM sold)
    """,
)
_query(
    "Q16",
    """
    SELECT p_brand, p_type, p_size, count(DISTINCT ps_suppkey) FROM partsupp, part
    WHERE p_partkey = ps_partkey AND p_brand <> 'Brand#45' AND p_type NOT LIKE 'MEDIUM POLISHED%'
      AND p_size IN (49, 14, 23, 45, 19, 3, 36, 9) AND ps_suppkey NOT IN (
        SELECT s_suppkey FROM supplier WHERE s_comment LIKE '%Customer%Complaints%')
    GROUP BY p_brand, p_type, p_size
    """,
)
_query(
    "Q17",
    """
    SELECT sum(l_extendedprice) / 7.0 AS avg_yearly FROM lineitem_by_part, part
    WHERE p_partkey = l_partkey AND p_brand LIKE 'Brand#2%' AND p_container LIKE 'MED%'
      AND l_quantity < (SELECT 0.4 * avg(l_quantity) FROM lineitem_by_part
        WHERE l_partkey = p_partkey)
    """,
    "",
)
_query(
    "Q18",
    """
    SELECT c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice, sum(l_quantity)
    FROM customer, orders, lineitem
    WHERE o_orderkey IN (
        SELECT l_orderkey FROM lineitem GROUP BY l_orderkey HAVING sum(l_quantity) > 250)
      AND c_custkey = o_custkey AND o_orderkey = l_orderkey
    GROUP BY c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice
    """,
)
_query(
    "Q19",
    f"""
    SELECT {REVENUE} FROM lineitem_by_part, part
    WHERE p_partkey = l_partkey AND l_shipmode IN ('AIR', 'AIR REG')
      AND l_shipinstruct = 'DELIVER IN PERSON'
      AND (p_brand LIKE 'Brand#1%' AND p_container IN ('SM CASE', 'SM BOX', 'SM PACK')
          AND l_quantity BETWEEN 1 AND 31 AND p_size BETWEEN 1 AND 15
        OR p_brand LIKE 'Brand#2%' AND p_container IN ('MED BAG', 'MED BOX', 'MED PKG')
          AND l_quantity BETWEEN 10 AND 40 AND p_size BETWEEN 1 AND 30
        OR p_brand LIKE 'Brand#3%' AND p_container IN ('LG CASE', 'LG BOX', 'LG PACK')
          AND l_quantity BETWEEN 20 AND 50 AND p_size BETWEEN 1 AND 45)
    """,
    "",
)
_query(
    "Q20",
    """
    SELECT s_name, s_address FROM supplier, nation
    WHERE s_suppkey IN (
        SELECT ps_suppkey FROM partsupp
        WHERE ps_partkey IN (SELECT p_partkey FROM part WHERE p_name LIKE 'f%')
          AND ps_availqty > (SELECT 0.5 * sum(l_quantity) FROM lineitem
            WHERE l_partkey = ps_partkey AND l_suppkey = ps_suppkey
              AND l_shipdate >= DATE '1994-01-01' AND l_shipdate < DATE '1995-01-01'))
      AND s_nationkey = n_nationkey AND n_name IN ('CANADA', 'FRANCE', 'KENYA')
    """,
)
_query(
    "Q21",
    """
    SELECT s_name, count(*) AS numwait FROM supplier, lineitem l1, orders, nation
    WHERE s_suppkey = l1.l_suppkey AND o_orderkey = l1.l_orderkey AND o_orderstatus = 'F'
      AND l1.l_receiptdate > l1.l_commitdate
      AND EXISTS (SELECT * FROM lineitem l2
        WHERE l2.l_orderkey = l1.l_orderkey AND l2.l_suppkey <> l1.l_suppkey)
      AND NOT EXISTS (SELECT * FROM lineitem l3
        WHERE l3.l_orderkey = l1.l_orderkey AND l3.l_suppkey <> l1.l_suppkey
          AND l3.l_receiptdate > l3.l_commitdate)
      AND s_nationkey = n_nationkey AND n_name IN ('SAUDI ARABIA', 'CHINA', 'IRAN')
    GROUP BY s_name
    """,
)
_query(
    "Q22",
    """
    SELECT cntrycode, count(*), sum(c_acctbal) FROM (
      SELECT substring(c_phone, 1, 2) AS cntrycode, c_acctbal FROM customer
      WHERE substring(c_phone, 1, 2) IN ('13', '31', '23', '29', '30', '18', '17')
        AND c_acctbal > (SELECT avg(c_acctbal) FROM customer WHERE c_acctbal > 0.00
          AND substring(c_phone, 1, 2) IN ('13', '31', '23', '29', '30', '18', '17'))
        AND NOT EXISTS (SELECT * FROM orders_by_customer WHERE o_custkey = c_custkey))
    GROUP BY cntrycode
    """,
    "cntrycode",
)
