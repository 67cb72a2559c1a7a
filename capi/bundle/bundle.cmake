# DSGD_BUNDLE=ON: from here on pkg-config finds Cap'n Proto, KJ, libuv and libsodium as archives of our own, and only those.
set(DSGD_BUNDLE_PREFIX ${CMAKE_BINARY_DIR}/bundle)
execute_process(COMMAND ${CMAKE_COMMAND} -E env CXX=${CMAKE_CXX_COMPILER} CC=${CMAKE_C_COMPILER}
                        ${CMAKE_CURRENT_LIST_DIR}/build-deps ${DSGD_BUNDLE_PREFIX}
                RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "Cap'n Proto and libuv for the bundle were not built; capi/bundle/build-deps says why above")
endif()
set(ENV{PKG_CONFIG_PATH} ${DSGD_BUNDLE_PREFIX}/lib/pkgconfig)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/build-deps)
